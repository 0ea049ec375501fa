"""The schemas of the REST API: JSON comes in and is checked, documents go out with types and units."""
