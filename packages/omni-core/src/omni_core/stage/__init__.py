"""What runs inside a stage process: its entry, its loop, and one node per stage."""
