# Kubernetes' programs in one binary; the name it is called by picks one. The build context is its folder.
FROM scratch
COPY kube /usr/local/bin/kube-scheduler
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["kube-scheduler"]
