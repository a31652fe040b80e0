"""Data sets in which two features, one easy and one hard, both tell the label."""
