"""How people look at a search."""
