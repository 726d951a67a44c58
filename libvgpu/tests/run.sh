#!/bin/sh
# run.sh BUILD TEST... - run the test binaries, then look at the library as a file.
build=$1
shift
failed=0
for test in "$@"; do
    echo "$(basename "$test")"
    "$test" || failed=1
done

# Drivers that name processes of a container by other PIDs, or show no memory of them (fake/README.md).
for world in "pids=host" "pids=own" "pids=mixed bytes=zero"; do
    for test in pids overhead neighbours; do
        echo "test_$test in a container, $world"
        STAGE_WORLD=$world "$build/tests/test_$test" || failed=1
    done
done

# It must load beside any glibc since 2.17, need nothing but libc, and export nothing but the driver's names.
echo "libvgpu.so"
newest=$(objdump -T "$build/libvgpu.so" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
[ "$(printf '%s\n' "$newest" GLIBC_2.17 | sort -V | tail -1)" = GLIBC_2.17 ] || { echo "  FAILED needs $newest"; failed=1; }
needed=$(readelf -d "$build/libvgpu.so" | grep NEEDED | grep -v 'libc\.so\.6')
[ -z "$needed" ] || { echo "  FAILED needs $needed"; failed=1; }
foreign=$(nm -D --defined-only "$build/libvgpu.so" | awk '{print $3}' | grep -Ev '^(cu[A-Z]|nvml[A-Z]|dlsym$|dlvsym$)')
[ -z "$foreign" ] || { echo "  FAILED exports $foreign"; failed=1; }
# A library that a program preloads answers for whatever is imported: time, files, mappings and waiting come from the kernel instead.
imported=$(nm -D --undefined-only "$build/libvgpu.so" | awk '$1 == "U" { sub(/@.*/, "", $2); print $2 }' | grep -Evx \
    'mem[a-z]+|str[a-z]+|__ctype_[a-z_]+|__errno_location|malloc|calloc|free|snprintf|getauxval|getenv|secure_getenv|pthread_setcancelstate')
[ -z "$imported" ] || { echo "  FAILED imports $imported"; failed=1; }
readelf -d "$build/libvgpu.so" | grep -q 'FLAGS_1.*NOW' || { echo "  FAILED not bound at load time"; failed=1; }
exit $failed
