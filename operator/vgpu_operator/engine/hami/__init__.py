"""Events, annotations and plugin turns that HAMi's tools and vendors' plugins expect."""
