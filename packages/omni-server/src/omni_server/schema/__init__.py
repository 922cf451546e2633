"""Request bodies as msgspec types: shapes and ranges, no meaning."""
