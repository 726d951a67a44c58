"""The admission webhooks, in a process of their own.

    app             assembles the process; `__main__` starts it
    server          the HTTPS server, with one path per webhook
    reviews         reviews of pods, Jobs and claims, which controllers create in large numbers
    kopf_handlers   reviews of objects that people write by hand, as Kopf handlers
    quotas          refuses a pod beyond its namespace's quota, if the configuration asks for it
    outcomes        counts and logs each review
    rules           mutates, validates and warns, as pure functions

The process is stateless, so any number of replicas can run. It does not load the engine, so
scheduling load never delays a review. The operator issues its serving certificate.
"""
