"""What one pair does: run (typed records), metrics and findings (pure), pictures and report, and the lossless proof."""
