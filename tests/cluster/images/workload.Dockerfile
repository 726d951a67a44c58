# What users' pods run in the tests: Python with pynvml, a driver-API client, nvidia-smi's stand-in, a shell.
ARG BUILDER
ARG BASE
FROM ${BUILDER} AS builder
COPY LICENSE build/wheel[s] /wheels/
COPY requirements.lock /src/
RUN python3 -m pip install --quiet --no-index --find-links=/wheels --no-deps --target=/out/python nvidia-ml-py
COPY libvgpu /src/libvgpu
RUN make -C /src/libvgpu BUILD=/out/native /out/native/vgpu-probe

FROM ${BASE}
COPY --from=builder /out/python /usr/lib/python3/dist-packages
COPY --from=builder /out/native/vgpu-probe /usr/local/bin/
COPY tests/workload/nvidia_smi.py /usr/local/bin/nvidia-smi
RUN chmod 755 /usr/local/bin/nvidia-smi
# Every image of nvidia/cuda sets this; a pod's own value, and what a claim gives, must take precedence.
ENV NVIDIA_VISIBLE_DEVICES=all
CMD ["sleep", "infinity"]
