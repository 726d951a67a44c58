"""Ports that are reserved before anybody listens on them."""

import socket
import subprocess
import sys

from vgpu_local.ports import free_ports

TAKE = "from vgpu_local.ports import free_ports; print(*free_ports(150)); input()"


def test_what_one_process_was_given_no_other_gets_while_it_runs() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        done = subprocess.run(
            [sys.executable, "-c", TAKE.replace("150", "150), *free_ports(150")],
            input="\n",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        other.communicate("\n")
    ours = [int(port) for port in done.stdout.split()]
    assert len(set(ours)) == 300
    assert not theirs & set(ours)


def test_a_port_that_was_given_out_can_be_listened_on() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        pass
