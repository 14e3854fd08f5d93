"""How upstreams refuse a prompt that is too long, and where they tell their window."""
