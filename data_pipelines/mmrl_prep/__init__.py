"""mmrl-prep: pictures and clips become checked, split, puzzled WebDataset shards."""
