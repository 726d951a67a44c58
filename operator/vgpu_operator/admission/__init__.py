"""The admission webhooks: everything that answers a review, in a process of its own.

    app             puts the process together; `__main__` starts it
    server          the HTTPS server, with a path for each webhook
    reviews         reviews of pods, Jobs and claims, which programs create in numbers
    kopf_handlers   reviews of what people write by hand, as Kopf handlers
    quotas          refuses a pod beyond its namespace's quota, where the configuration says so
    outcomes        counts and logs each review
    rules           mutate, validate and warn, as functions of values

The process is stateless and runs in any number of replicas. It loads no engine: no scheduling load
delays a review, and neither process waits for the other. The operator issues the certificate that
it serves with.
"""
