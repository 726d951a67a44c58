"""Events, annotations and plugin turns that HAMi's tools and vendors' device plugins expect."""
