"""How a grant takes effect: the limit page, the usage region and the CDI spec of an allocation."""
