"""A network configuration list, run as libcni runs it.

ADD in the list's order, each plugin given what the one before answered; DEL in reverse, CHECK in
order, both with the last ADD's answer; capabilities become `runtimeConfig`. Every plugin is
executed for real, in a node's namespace.
Source: CNI SPEC 1.1.0 section 3; libcni's behaviour in reference/cni.md 2.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

from tests.support.netns import Namespace

Json = dict[str, Any]


class PluginFailed(Exception):
    """A plugin of the list answered an error; `answer` is its JSON."""

    def __init__(self, plugin: str, answer: Json) -> None:
        super().__init__(plugin, answer)
        self.plugin, self.answer = plugin, answer


class NetworkList:
    """One list on one node. `runtime` holds the value of every capability."""

    def __init__(self, node: Namespace, conflist: Json, path: str, **runtime: Any) -> None:
        self._node, self._conflist, self._path = node, conflist, path
        self._runtime = runtime
        self.results: dict[tuple[str, str], Json] = {}

    async def add(self, container: str, pod: Namespace, ifname: str = "eth0", **env: str) -> Json:
        previous: Json | None = None
        for plugin in self._conflist["plugins"]:
            previous = await self._run("ADD", plugin, previous, container, pod.path, ifname, env)
        assert previous is not None
        self.results[container, ifname] = previous
        return previous

    async def delete(self, container: str, netns: str, ifname: str = "eth0", **env: str) -> None:
        previous = self.results.get((container, ifname))
        for plugin in reversed(self._conflist["plugins"]):
            await self._run("DEL", plugin, previous, container, netns, ifname, env)
        self.results.pop((container, ifname), None)

    async def check(
        self, container: str, pod: Namespace, *, without: tuple[str, ...] = (), **env: str
    ) -> None:
        """Of eth0. `without` names plugins whose own CHECK is broken."""
        previous = self.results[container, "eth0"]
        for plugin in self._conflist["plugins"]:
            if plugin["type"] not in without:
                await self._run("CHECK", plugin, previous, container, pod.path, "eth0", env)

    async def _run(self, verb: str, plugin: Json, previous: Json | None, *who: Any) -> Json:
        container, netns, ifname, env = who
        conf = {key: self._conflist[key] for key in ("name", "cniVersion")} | plugin
        offered = {
            name: self._runtime[name]
            for name, wanted in plugin.get("capabilities", {}).items()
            if wanted and name in self._runtime
        }
        if offered:
            conf["runtimeConfig"] = offered
        if previous is not None:
            conf["prevResult"] = previous
        variables = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": netns,
            "CNI_IFNAME": ifname,
            "CNI_PATH": self._path,
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            **env,
        }
        program = shutil.which(plugin["type"], path=self._path)
        assert program is not None, f"{plugin['type']} is not in {self._path}"
        process = await asyncio.create_subprocess_exec(
            *("nsenter", f"--net={self._node.path}", program),
            env=variables,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate(json.dumps(conf).encode())
        answer: Json = json.loads(stdout) if stdout.strip() else {}
        if process.returncode:
            raise PluginFailed(plugin["type"], answer or {"stderr": stderr.decode()})
        return answer
