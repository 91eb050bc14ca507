"""What a change of models costs those who are served meanwhile, and what the Open Inference Protocol costs."""
