"""Many runs at once: jobs by content, a runner on Ray, a table that follows them, and the bill."""
