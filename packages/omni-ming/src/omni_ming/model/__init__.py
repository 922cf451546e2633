"""The Thinker's decoder: BailingMoeV2 with a router per modality."""
