"""What a plan chooses where a configuration says `"auto"`."""
