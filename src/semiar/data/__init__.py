"""From what users have to what a model learns from: records, chat rendering, tasks, batches."""
