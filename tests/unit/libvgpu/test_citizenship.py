"""Programs that have nothing to do with GPUs run as if the library were not there.

Each program runs twice in the same root, with the library in `/etc/ld.so.preload` and without,
prints the state that a library could have changed (signals, umask, descriptors, environment,
limits), and ends with a status of its own. Both runs must be equal, including standard error.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from debian_packages import installed_program
from preloaded_root import INSIDE, Outcome, PreloadedRoot

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = pytest.mark.real_time

ENDED_WITH = 7
BASH = """
trap 'echo caught' USR1
kill -USR1 $$
grep -E '^(Sig[BIC]|Umask)' /proc/self/status
grep -E '^(Sig[BIC]|Umask)' /proc/$$/status
ls /proc/$$/fd
env | sort
ulimit -a
umask
trap
echo to standard error >&2
(kill -TERM $BASHPID); echo "a child ended with $?"
exit 7
"""
PYTHON = """
import os, resource, signal, subprocess, sys, threading
print([(int(s), str(signal.getsignal(s))) for s in sorted(signal.valid_signals())])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), sorted(os.listdir('/proc/self/fd')))
print(dict(sorted(os.environ.items())), resource.getrlimit(resource.RLIMIT_NOFILE))
signal.signal(signal.SIGUSR2, lambda *_: print('caught'))
os.kill(os.getpid(), signal.SIGUSR2)
threading.Thread(target=print, args=('from a thread',)).start()
print(subprocess.run(['sh', '-c', 'umask; exit 3'], capture_output=True))
print('to standard error', file=sys.stderr)
print([l for l in open('/proc/self/status') if l.startswith(('SigB', 'SigI', 'SigC', 'Umask'))])
os._exit(7) if os.fork() == 0 else print(os.waitstatus_to_exitcode(os.wait()[1]))
sys.exit(7)
"""
JAVA = """
import java.nio.file.*;
import java.util.*;
public class Report {
    public static void main(String[] a) throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status")))
            if (line.matches("(Sig[BIC]|Umask).*")) System.out.println(line);
        System.out.println(new TreeMap<>(System.getenv()));
        Process child = new ProcessBuilder("sh", "-c", "umask; exit 3").inheritIO().start();
        System.out.println(child.waitFor());
        sun.misc.Signal.handle(new sun.misc.Signal("USR2"), s -> System.out.println("caught " + s));
        Thread t = new Thread(() -> System.out.println("from a thread"));
        t.start();
        t.join();
        System.err.println("to standard error");
        Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("the end")));
        System.exit(7);
    }
}
"""
NODE = """
const fs = require('fs'), { spawnSync } = require('child_process');
process.on('SIGUSR2', () => {
  console.log('caught');
  process.exit(7);
});
const status = fs.readFileSync('/proc/self/status', 'utf8').split('\\n');
console.log(status.filter(line => /^(Sig[BIC]|Umask)/.test(line)));
console.log(Object.entries(process.env).sort(), process.umask());
console.log(spawnSync('sh', ['-c', 'ls /proc/self/fd; exit 3'], { encoding: 'utf8' }).status);
console.error('to standard error');
process.kill(process.pid, 'SIGUSR2');
setTimeout(() => process.exit(1), 30000);
"""
SETUID = """
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
static int print_lines(const char *path, const char *first, FILE *out)
{
    char line[4096];
    int count = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strstr(line, first)) count += fputs(line, out) >= 0;
    return count;
}
int main(void)
{
    print_lines("/proc/self/status", "SigCgt", stdout);
    print_lines("/proc/self/status", "SigIgn", stdout);
    print_lines("/proc/self/status", "SigBlk", stdout);
    print_lines("/proc/self/status", "Umask", stdout);
    printf("%d %d %lu\\n", getuid() != 0, geteuid(), getauxval(AT_SECURE));
    print_lines("/proc/self/maps", "libvgpu.so", stderr);
    return 7;
}
"""


@pytest.fixture
def root(native: Path, tmp_path: Path) -> PreloadedRoot:
    """A root of its own."""
    return PreloadedRoot(tmp_path / "root", native)


def both(root: PreloadedRoot, command: Sequence[str], *, text: str = "") -> Outcome:
    """Run a command without and with the library; return the outcome, which must be the same."""
    without = root.run(command, preloaded=False, text=text)
    preloaded = root.run(command, preloaded=True, text=text)
    assert preloaded == without
    return preloaded


def test_the_library_is_really_there(root: PreloadedRoot) -> None:
    maps = ["grep", "-c", "libvgpu", "/proc/self/maps"]
    assert root.run(maps, preloaded=False).status == 1
    assert root.run(maps, preloaded=True).status == 0


def test_bash_is_unharmed(root: PreloadedRoot) -> None:
    left = both(root, [installed_program("bash", "bash"), "-c", BASH])
    assert left.status == ENDED_WITH
    assert left.output.startswith("caught\n")
    assert "to standard error\n" in left.errors


def test_python_is_unharmed(root: PreloadedRoot) -> None:
    left = both(root, [installed_program("python3", "python3-minimal"), "-c", PYTHON])
    assert left.status == ENDED_WITH
    assert "from a thread" in left.output


def test_java_is_unharmed(root: PreloadedRoot) -> None:
    java = installed_program("java", "default-jdk-headless")
    (root.local / "Report.java").write_text(JAVA)
    left = both(root, [java, "-XX:TieredStopAtLevel=1", f"{INSIDE}/Report.java"])
    assert left.status == ENDED_WITH
    assert "the end" in left.output


def test_node_is_unharmed(root: PreloadedRoot) -> None:
    left = both(root, [installed_program("node", "nodejs"), "-e", NODE])
    assert left.status == ENDED_WITH
    assert left.output.endswith("caught\n")


def test_sshd_and_a_session_in_it_are_unharmed(root: PreloadedRoot) -> None:
    sshd, ssh = (
        installed_program("sshd", "openssh-server"),
        installed_program("ssh", "openssh-client"),
    )
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root.local / name)]
        subprocess.run(key, check=True)
    shutil.copyfile(root.local / "user.pub", root.local / "authorized")
    (root.local / "sshd_config").write_text(
        f"HostKey {INSIDE}/host\nAuthorizedKeysFile {INSIDE}/authorized\nStrictModes no\n"
        "PermitRootLogin prohibit-password\nUsePAM no\nPidFile none\n"
    )
    (root.local / "serve").write_text(
        f"mount -t tmpfs none /run && mkdir /run/sshd && exec {sshd} -i -f {INSIDE}/sshd_config\n"
    )
    options = {
        "ProxyCommand": f"sh {INSIDE}/serve",
        "IdentityFile": f"{INSIDE}/user",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
    }
    arguments = [f"-o{name}={value}" for name, value in options.items()]
    report = "grep -E '^(Sig[BIC]|Umask)' /proc/self/status; ls /proc/self/fd; umask; exit 7"
    left = both(root, [ssh, "-T", *arguments, "root@simulated", report])
    assert left.status == ENDED_WITH, left.errors
    assert "Umask" in left.output


def test_a_setuid_program_is_unharmed_though_the_library_is_in_it(root: PreloadedRoot) -> None:
    program = root.local / "report"
    compiler = ["gcc", "-x", "c", "-", "-o", str(program)]
    subprocess.run(compiler, input=SETUID, text=True, check=True)
    program.chmod(0o4755)
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    command = [*nobody, f"{INSIDE}/report"]
    without = root.run(command, preloaded=False)
    preloaded = root.run(command, preloaded=True)
    assert (without.status, preloaded.status) == (ENDED_WITH, ENDED_WITH)
    assert preloaded.output == without.output
    assert preloaded.output.endswith("1 0 1\n"), "it was not secure-execution mode"
    assert not without.errors
    assert f"{INSIDE}/libvgpu.so" in preloaded.errors


USES_THE_DRIVER = """
#include <stdio.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int main(void)
{
    void *context;
    unsigned long long address;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    printf("%d\\n", cuMemAlloc_v2(&address, 1 << 30));
    return 0;
}
"""


def driver_program(root: PreloadedRoot, native: Path, *options: str) -> str:
    """Return a program that takes 1 GiB of the simulated device and prints the driver's answer."""
    shutil.copyfile(native / "fake" / "libcuda.so.1", root.local / "libcuda-driver.so.1")
    shutil.copyfile(native / "shadow" / "libcuda.so.1", root.local / "libcuda.so.1")
    compile_driver_program(root, native, INSIDE, *options)
    return f"{INSIDE}/program"


def compile_driver_program(root: PreloadedRoot, native: Path, inside: str, *options: str) -> None:
    """Compile a program that finds its driver at `inside`, and describe the device to it."""
    machine = root.local / "usage" / "machine"
    machine.write_text(f"card uuid={DEVICE} memory_mib=16384\n")
    machine.parent.chmod(0o777)
    where = [f"-L{native}/fake", "-l:libcuda.so.1", f"-Wl,-rpath,{inside}"]
    compiler = ["gcc", *options, "-x", "c", "-", "-o", str(root.local / "program"), *where]
    subprocess.run(compiler, input=USES_THE_DRIVER, text=True, check=True)


def grant(root: PreloadedRoot, stage: Stage, limit: int) -> None:
    """Give the root a page with this limit, and an empty region."""
    stage.grant({DEVICE: limit})
    shutil.copyfile(stage.folder / "limits", root.local / "limits")
    shutil.copyfile(stage.folder / "region", root.local / "usage" / "region")


DEVICE = "GPU-6f3c1c2e-0000-4000-8000-000000000000"
MACHINE = {"VGPU_FAKE_MACHINE": f"{INSIDE}/usage/machine"}
ALLOCATED, OUT_OF_MEMORY = "0\n", "2\n"


@pytest.mark.parametrize("sanitizer", ["thread", "address", "undefined"])
def test_a_program_built_with_a_sanitizer_runs_and_is_limited(
    root: PreloadedRoot, native: Path, stage: Stage, sanitizer: str
) -> None:
    program = driver_program(root, native, f"-fsanitize={sanitizer}")
    # ASan ends a program in which any other library was loaded before its own.
    env = MACHINE | {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"}
    grant(root, stage, 2 << 30)
    assert root.run([program], preloaded=False, env=env) == Outcome(0, ALLOCATED, "")
    grant(root, stage, 1 << 20)
    assert root.run([program], preloaded=True, env=env) == Outcome(0, OUT_OF_MEMORY, "")


def test_a_cleared_environment_changes_nothing_of_the_limit(
    root: PreloadedRoot, native: Path, stage: Stage
) -> None:
    program = driver_program(root, native)
    grant(root, stage, 2 << 30)
    assert root.run([program], preloaded=True, env=MACHINE).output == ALLOCATED
    grant(root, stage, 1 << 20)
    assert root.run([program], preloaded=True, env=MACHINE).output == OUT_OF_MEMORY
    weaker = {"CUDA_DEVICE_MEMORY_LIMIT": "0", "VGPU_LIMIT_PAGE": "/none", "LD_PRELOAD": ""}
    assert root.run([program], preloaded=True, env=MACHINE | weaker).output == OUT_OF_MEMORY
    # Not even without the preload file: the driver's own name leads to the library.
    assert root.run([program], preloaded=False, env=MACHINE).output == OUT_OF_MEMORY


def test_a_setuid_program_takes_no_file_name_from_its_callers_environment(
    native: Path, tmp_path: Path
) -> None:
    # Without a page the environment counts, unless the library is where the agent puts it.
    inside = "/usr/local/gpu"
    root = PreloadedRoot(tmp_path / "root", native, inside=inside)
    shutil.copyfile(native / "fake" / "libcuda.so.1", root.local / "libcuda.so.1")
    compile_driver_program(root, native, inside)
    env = {
        "VGPU_FAKE_MACHINE": f"{inside}/usage/machine",
        "CUDA_DEVICE_MEMORY_LIMIT": "1m",
        "VGPU_USAGE_REGION": f"{inside}/made-by-root",
    }
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    (root.local / "program").chmod(0o4755)
    left = root.run([*nobody, f"{inside}/program"], preloaded=True, env=env)
    assert left.output == ALLOCATED, left.errors
    assert not (root.local / "made-by-root").exists()
    (root.local / "program").chmod(0o755)
    assert root.run([f"{inside}/program"], preloaded=True, env=env).output == OUT_OF_MEMORY
    assert (root.local / "made-by-root").exists()


@pytest.mark.parametrize("preloaded", [True, False])
def test_where_the_agents_library_finds_no_page_it_denies_whatever_the_environment_says(
    root: PreloadedRoot, native: Path, *, preloaded: bool
) -> None:
    program = driver_program(root, native)
    for env in ({}, {"CUDA_DEVICE_MEMORY_LIMIT": "0"}):
        left = root.run([program], preloaded=preloaded, env=MACHINE | env)
        assert left == Outcome(0, OUT_OF_MEMORY, "")


MOUNTED = f"""
mount --bind {INSIDE}/limits {INSIDE}/limits
mount --bind {INSIDE}/usage {INSIDE}/usage
"""
COVERED = {
    "nothing": "true",
    "the page": f"mount --bind {INSIDE}/usage/larger {INSIDE}/limits",
    "the region": f"mount --bind {INSIDE}/usage/empty {INSIDE}/usage/region",
    "its folder": f"mount --bind {INSIDE}/other {INSIDE}/usage",
    "all": f"cp -a {INSIDE} /run/copy && cp {INSIDE}/usage/larger /run/copy/limits && "
    f"mount --bind /run/copy {INSIDE}",
}


@pytest.mark.parametrize("covered", COVERED)
def test_a_mount_over_page_or_region_in_a_user_namespace_denies(
    root: PreloadedRoot, native: Path, stage: Stage, covered: str
) -> None:
    program = driver_program(root, native)
    usage, other = root.local / "usage", root.local / "other"
    other.mkdir()
    shutil.copyfile(usage / "machine", other / "machine")
    for limit, page in ((16 << 30, usage / "larger"), (2 << 30, root.local / "limits")):
        stage.grant({DEVICE: limit})
        shutil.copyfile(stage.folder / "limits", page)
    for region in (usage / "region", usage / "empty", other / "region"):
        shutil.copyfile(stage.folder / "region", region)
        region.chmod(0o666)
    inside = f"mount -t tmpfs none /run && {COVERED[covered]} && exec {program}"
    script = f"{MOUNTED} exec unshare -Urm sh -c '{inside}'"
    left = root.run(["sh", "-ec", script], preloaded=True, env=MACHINE)
    expected = ALLOCATED if covered == "nothing" else OUT_OF_MEMORY
    assert left == Outcome(0, expected, "")
