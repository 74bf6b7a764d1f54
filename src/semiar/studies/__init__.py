"""Many drafters, tasks and seeds under one budget, and the paper's claims."""
