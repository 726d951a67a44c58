# Puts the simulated driver and this node's machine where containers can be given them. A machine
# that is there stays as it is: running containers use it. A file named after the node in the
# ConfigMap goes before machine.txt.
set -eu
node=$(printf %s "$NODE_NAME" | md5sum | cut -c1-12)
template=/etc/vgpu-machine/$NODE_NAME
[ -e "$template" ] || template=/etc/vgpu-machine/machine.txt
for library in libcuda.so.1 libnvidia-ml.so.1; do
  cp "/usr/lib/vgpu/driver/$library" "/var/lib/vgpu-demo/.$library"
  mv "/var/lib/vgpu-demo/.$library" "/var/lib/vgpu-demo/$library"
done
if [ ! -e /var/lib/vgpu-demo/machine ]; then
  sed "s/-NODE\b/-$node/" "$template" > /var/lib/vgpu-demo/.machine
  mv /var/lib/vgpu-demo/.machine /var/lib/vgpu-demo/machine
fi
# The simulated host has the NUMA nodes that its GPUs name, whatever the real one has. Its PCI bus is empty: the agent
# asks the driver for each GPU's.
mkdir -p /var/lib/vgpu-demo/sys/devices/system/node
grep -o 'numa=[0-9][0-9]*' /var/lib/vgpu-demo/machine | cut -d= -f2 | sort -nu | paste -sd, - \
  > /var/lib/vgpu-demo/sys/devices/system/node/has_cpu
