#!/bin/sh
# arm64.sh BUILD TEST... - run cross-compiled tests of an arm64 build under qemu-user: the module tests as they are, and those
# that need the library preloaded on a machine laid out by hand, as an emulated program cannot start itself again.
#   QEMU=qemu-aarch64 SYSROOT=/usr/aarch64-linux-gnu
build=$1
shift
qemu=${QEMU:-qemu-aarch64}
sysroot=${SYSROOT:-/usr/aarch64-linux-gnu}
stage=$(mktemp -d) || exit 3
trap 'rm -rf "$stage"' EXIT
failed=0

# The machine that the test's own text asks for.
lay_out() {
    printf 'card uuid=GPU-00000000-0000-4000-8000-00000000000%s memory_mib=16384\n' 1 2 >"$stage/machine"
    more=$(sed -n 's/.*stage_enter(argv, "\(.*\)").*/\1/p' "$(dirname "$0")/test_$1.c")
    printf '%b\n' "$more" >>"$stage/machine"
    rm -f "$stage"/machine.state "$stage"/machine.engine "$stage/page" "$stage/region"
    truncate -s 16384 "$stage/page"
    truncate -s 2113536 "$stage/region"
}

for test in "$@"; do
    name=$(basename "$test")
    echo "$name"
    case $name in
    unit:*)
        timeout 120 "$qemu" -L "$sysroot" "$build/tests/test_${name#unit:}" || failed=1
        ;;
    *)
        lay_out "$name"
        library=libvgpu.so
        grep -q STAGE_VIRTUAL "$(dirname "$0")/test_$name.c" && library=tests/virtual/libvgpu.so
        timeout 120 "$qemu" -L "$sysroot" -E "VGPU_STAGE=$stage" -E "VGPU_FAKE_MACHINE=$stage/machine" \
            -E "VGPU_LIMIT_PAGE=$stage/page" -E "VGPU_USAGE_REGION=$stage/region" \
            -E "LD_LIBRARY_PATH=$build/fake" -E "LD_PRELOAD=$build/$library" "$build/tests/test_$name" || failed=1
        ;;
    esac
done

# What the agent's image takes of its own build of this folder: each file is arm64's.
echo "nodeagent/Dockerfile"
taken=$(sed -n 's/^COPY --from=native \(.*\) [^ ]*$/\1/p' "$(dirname "$0")/../../nodeagent/Dockerfile")
[ -n "$taken" ] || { echo "  FAILED takes nothing"; failed=1; }
for file in $taken; do
    machine=$(aarch64-linux-gnu-readelf -h "$build/${file#/out/}" | sed -n 's/.*Machine: *//p')
    [ "$machine" = AArch64 ] || { echo "  FAILED $file is for ${machine:-nothing}"; failed=1; }
done

echo "libvgpu.so"
newest=$(aarch64-linux-gnu-objdump -T "$build/libvgpu.so" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
[ "$newest" = GLIBC_2.17 ] || { echo "  FAILED needs $newest"; failed=1; }
needed=$(aarch64-linux-gnu-readelf -d "$build/libvgpu.so" | grep NEEDED | grep -v 'libc\.so\.6')
[ -z "$needed" ] || { echo "  FAILED needs $needed"; failed=1; }
exit $failed
