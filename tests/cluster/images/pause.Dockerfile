# Process 1 of every pod on the test's node.
ARG BUILDER
FROM ${BUILDER} AS builder
COPY tests/cluster/images/pause.c /src/
RUN gcc -Os -static -s -o /pause /src/pause.c

FROM scratch
COPY --from=builder /pause /pause
ENTRYPOINT ["/pause"]
