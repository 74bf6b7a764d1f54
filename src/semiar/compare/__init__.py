"""Many drafters, tasks and seeds under one budget, and what to make of them."""
