"""containerd on a test host, driven through its CRI socket as a kubelet drives it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.runtimes.host import ENVIRON, START_S, Host
from tests.support.cri import Cri, CriError, Pod, SandboxStatus, socket_of
from tests.support.images import PAUSE, pause_image
from tests.support.netns import eventually

CONFIG = f"""
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
    max_conf_num = 1
"""


class Containerd:
    """Runs as long as its `with` block. `cri` is the client."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.machine = host.machine
        self._folder = folder

    def __enter__(self) -> Self:
        config = self.machine.path("/etc/containerd/config.toml")
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(CONFIG)
        self.start_daemon()
        archive = pause_image(self._folder)
        self.machine.run("ctr", "-n", "k8s.io", "images", "import", str(archive))
        self.cri = Cri(socket_of(self.machine.path("/")), cgroup=self.machine.cgroup)
        assert eventually(lambda: not self.cri.network_problem()), self.cri.network_problem()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cri.__exit__()
        self.stop_daemon()

    def start_daemon(self) -> None:
        self._process = self.machine.spawn("containerd", log="containerd", env=ENVIRON)
        ready = ("ctr", "version")
        assert eventually(
            lambda: self.machine.attempt(*ready).returncode == 0, timeout_s=START_S
        ), self.machine.log("containerd")

    def stop_daemon(self, number: signal.Signals = signal.SIGTERM) -> None:
        for pid in self.machine.processes("containerd"):
            os.kill(pid, number)
        self._process.wait(timeout=20)

    def restart(self, number: signal.Signals) -> None:
        """End the daemon with that signal; its shims, the pods, go on."""
        self.stop_daemon(number)
        self.start_daemon()
        assert eventually(self._answers, timeout_s=START_S)

    def _answers(self) -> bool:
        with suppress(CriError):
            return not self.cri.network_problem()
        return False

    def start(self, pod: Pod) -> tuple[str, SandboxStatus]:
        sandbox = self.cri.run(pod)
        return sandbox, self.cri.status(sandbox)

    def serve(self, status: SandboxStatus, port: int) -> None:
        """A web server in the pod, listening when this returns; ends with the machine."""
        command = ("nsenter", f"--net={status.netns}", sys.executable, "-m", "http.server")
        options = ("--bind", "::", "--directory", "/etc/cni")
        self.machine.spawn(*command, str(port), *options, log="http")
        listening = ("ss", "-Hltn", f"sport = :{port}")
        assert eventually(lambda: self.host.in_namespace(status.netns, *listening).stdout != "")

    def end(self, sandbox: str) -> None:
        self.cri.stop(sandbox)
        self.cri.remove(sandbox)

    def remove_all(self) -> None:
        for sandbox in self.cri.sandboxes():
            self.end(sandbox)

    def left(self) -> list[str]:
        """Of pods, in our datastore and kernel, and in the runtime. Not its shims: 1.6 leaves one
        behind when a deadline comes at the wrong moment; it ends with the machine."""
        left = self.host.leftovers()
        left += [f"sandbox {name}" for name in self.cri.sandboxes().values()]
        left += [line for line in self.machine.mounts() if line.startswith("nsfs ")]
        return left
