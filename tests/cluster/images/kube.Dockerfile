# Kubernetes' programs in one binary, which behaves as the program whose name it is called by. The build context is its
# folder.
FROM scratch
COPY kube /usr/local/bin/kube-scheduler
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["kube-scheduler"]
