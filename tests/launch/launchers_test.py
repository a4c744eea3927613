"""The launchers: what they would do, and what they do when machines come and go."""

import pathlib
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from jax._src.clusters import cloud_tpu_cluster
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "launch").glob("*.sh"), ROOT / "launch" / "slurm.sbatch"])
FLAGS = ("--config=configs/cifar10.py:ncl", "--workdir=/runs/a b")
TPU = {"NAME": "pod", "ZONE": "z", "TYPE": "v4-64", "SHARE": "10.0.0.2:/runs"}
SET = {"NAME": "ncl", "IMAGE": "here/ncl:1", "CLAIM": "disk", "HOSTS": "4"}


def call(script, *arguments, env=None, path=None, cwd=None):
  """(exit code, standard output) of a launcher in a bare environment."""
  paths = ([str(path)] if path else []) + ["/usr/bin", "/bin"]
  done = subprocess.run(
    ["bash", str(ROOT / "launch" / script), *arguments],
    env={"PATH": ":".join(paths)} | (env or {}),
    cwd=cwd,
    capture_output=True,
    text=True,
    timeout=60,
  )
  return done.returncode, done.stdout + done.stderr * (done.returncode != 0)


def fake(folder, name, *lines):
  file = folder / name
  file.write_text("\n".join(["#!/usr/bin/env bash", f'log="{folder}/log"', *lines]))
  file.chmod(0o755)


def commands(text):
  """The words of every line "+ command"."""
  return [shlex.split(line[2:]) for line in text.splitlines() if line.startswith("+ ")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_are_sound(script):
  subprocess.run(["bash", "-n", script], check=True)
  if shutil.which("shellcheck"):
    subprocess.run(["shellcheck", script], check=True)


@pytest.mark.parametrize("script", ["tpu_vm.sh", "kubernetes.sh", "local.sh"])
def test_without_arguments_they_explain_themselves(script):
  code, text = call(script, env=TPU)
  assert code == 2 and f"launch/{script} [--dry_run]" in text and "set -" not in text


@pytest.mark.parametrize(
  ("action", "words"),
  [
    ("create", ["queued-resources create pod --zone=z", "type=v4-64", "--spot"]),
    ("install", ["scp", "--worker=all", "/tmp/ncl_jax-"]),
    ("install", ["ssh", "pip install --constraints constraints.txt '.[tpu,tfds,gcs]'"]),
    ("run", ["ssh", "--worker=all", "-m launch.train --distributed", r"/runs/a\ b"]),
    ("run", ["JAX_PLATFORMS=tpu,cpu", "JAX_COMPILATION_CACHE_DIR=/runs/"]),
    ("run", ["mountpoint -q /runs || sudo mount -t nfs 10.0.0.2:/runs /runs"]),
    ("keep", ["ssh", "--worker=all", "-m launch.train --distributed", r"/runs/a\ b"]),
    ("stop", ["ssh", "--worker=all", "take_over.sh"]),
    ("delete", ["queued-resources delete pod", "--force", "--quiet"]),
  ],
)
def test_tpu_commands(action, words):
  arguments = FLAGS if action in ("run", "keep") else ()
  code, text = call("tpu_vm.sh", "--dry_run", action, *arguments, env=TPU)
  assert code == 0
  said = " ".join(" ".join(words) for words in commands(text))
  assert all(word in said for word in words), said
  # The same where the flag comes last.
  assert call("tpu_vm.sh", action, *arguments, "--dry_run", env=TPU) == (code, text)


@pytest.mark.parametrize(
  ("kind", "version"),
  [
    ("v4-64", "tpu-ubuntu2204-base"),
    ("v5litepod-16", "v2-alpha-tpuv5-lite"),
    ("v5p-8", "v2-alpha-tpuv5"),
    ("v6e-8", "v2-alpha-tpuv6e"),
    ("tpu7x-8", None),
  ],
)
def test_the_image_of_a_tpu_follows_its_type(kind, version):
  code, text = call("tpu_vm.sh", "--dry_run", "create", env=TPU | {"TYPE": kind})
  if version:
    assert code == 0 and f"--runtime-version={version}" in commands(text)[0]
  else:
    assert code == 2 and "kubernetes.sh" in text


# A cloud of files: `node` and `queue` hold states, `runs` and `nights` a line of shell
# for each training and each pause. The rest is as in the real one: a request that is
# granted makes a node; hosts without an installation.
CLOUD = """
cd "$(dirname "$0")"
next() { local line; line=$(sed -n 1p "$1") && sed -i 1d "$1" && eval "$line"; }
say() { [[ -e $1 ]] && cat "$1" || { echo "ERROR: NOT_FOUND: no $1" >&2; exit 1; }; }
case $(basename "$0"),$3,$4,$* in
  sleep,*) next nights ;;
  git,*) [[ $1 != rev-parse ]] || echo abc ;;
  *,tpu-vm,describe,*) [[ ! -e offline ]] || exit 1; say node ;;
  *,queued-resources,describe,*) say queue ;;
  *,create,*) echo create >> log; [[ ! -e refused ]] || exit 1; echo ACCEPTED > queue ;;
  *,delete,*) echo delete >> log; rm -f node queue installed ;;
  *,scp,*) echo copy >> log ;;
  *"test -e"*) say installed ;;
  *"touch installed"*) touch installed ;;
  *launch.train*) echo train >> log; next runs ;;
esac
"""


def keep(folder, runs, nights=(), **files):
  """(exit code, what was asked of the cloud) of `keep`."""
  for name in ("gcloud", "sleep", "git"):
    fake(folder, name, CLOUD)
  files |= {"runs": "\n".join(runs), "nights": "\n".join(nights)}
  for name, text in files.items():
    (folder / name).write_text(text)
  code, _ = call("tpu_vm.sh", "keep", *FLAGS, env=TPU, path=folder)
  return code, (folder / "log").read_text().split()


def test_keep_survives_a_lost_connection_sigterm_and_a_preemption(tmp_path):
  lost = "echo PREEMPTED > node; echo SUSPENDING > queue; exit 255"
  granted = "echo READY > node; echo ACTIVE > queue"
  code, asked = keep(
    tmp_path,
    runs=["exit 255", "exit 143", lost, "exit 0"],
    nights=["", "", "", "", "echo WAITING_FOR_RESOURCES > queue", granted],
    node="READY",
    queue="ACTIVE",
    installed="",
  )
  assert code == 0
  again = ["delete", "create", "copy", "train"]
  assert asked == ["train", "train", "train", *again]


def test_keep_begins_with_nothing(tmp_path):
  granted = "echo READY > node; echo ACTIVE > queue"
  assert keep(tmp_path, ["exit 0"], ["", granted]) == (0, ["create", "copy", "train"])


@pytest.mark.parametrize("code", [2, 3])
def test_keep_does_not_repeat_what_would_fail_again(tmp_path, code):
  assert keep(tmp_path, [f"exit {code}"], node="READY", installed="") == (
    code,
    ["train"],
  )


def test_keep_gives_up(tmp_path):
  for name, files, expected in [
    ("failing", {"node": "READY", "installed": ""}, ["train"] * 5),
    ("refused", {"refused": ""}, ["create"] * 5),
    # A question that fails is not an answer: no second slice is asked for.
    ("offline", {"node": "READY", "offline": "", "log": ""}, []),
  ]:
    (tmp_path / name).mkdir()
    assert keep(tmp_path / name, ["exit 1"] * 9, **files) == (1, expected)


def test_keep_needs_gcloud(tmp_path):
  for tool in ("bash", "dirname", "git", "grep", "mktemp", "rm"):
    (tmp_path / tool).symlink_to(shutil.which(tool))
  env = TPU | {"PATH": str(tmp_path)}
  code, text = call("tpu_vm.sh", "keep", *FLAGS, env=env)
  assert code == 2 and "gcloud is not installed" in text


def test_a_training_left_on_a_host_is_ended_before_the_next(tmp_path):
  (tmp_path / "launch").mkdir()
  script = shutil.copy(ROOT / "launch" / "take_over.sh", tmp_path / "launch")
  # The first saves when it is asked to, the second does not listen.
  for trap in ("touch saved; exit 143", ""):
    held = subprocess.Popen(
      [script, "bash", "-c", f"trap '{trap}' TERM; touch ready; {WAIT} : launch.train"],
      cwd=tmp_path,
    )
    while not (tmp_path / "ready").exists():
      assert held.poll() is None
    (tmp_path / "ready").unlink()
    assert int((tmp_path / "train.pid").read_text()) == held.pid
    subprocess.run([script], check=True, env={"GRACE": "1", "PATH": "/usr/bin:/bin"})
    assert held.wait(10) == (143 if trap else -9)
  assert (tmp_path / "saved").exists()
  # A number that is some other program's now is left alone.
  with subprocess.Popen(["sleep", "60"]) as other:
    (tmp_path / "train.pid").write_text(f"{other.pid}\n")
    done = subprocess.run([script, "echo", "mine"], capture_output=True, text=True)
    assert done.stdout == "mine\n" and other.poll() is None
    other.kill()


# Shells wait for a program that runs in front before they look at signals.
WAIT = "for ((i = 0; i < 600; i++)); do sleep 0.1; done;"


def test_slurm_uses_all_gpus_of_a_host(tmp_path):
  env = {"SLURM_GPUS_ON_NODE": "4", "PYTHON": "python3"}
  code, text = call("slurm.sbatch", "--dry_run", *FLAGS, env=env)
  (words,) = commands(text)
  assert code == 0 and words[:2] == [
    "JAX_LOCAL_DEVICE_IDS=0,1,2,3",
    "JAX_PLATFORMS=cuda,cpu",
  ]
  assert words[2] == f"JAX_COMPILATION_CACHE_DIR={ROOT}/.compiled"
  assert words[5:9] == ["python3", "-m", "launch.train", "--distributed"]
  assert words[9:] == list(FLAGS)
  header = (ROOT / "launch" / "slurm.sbatch").read_text()
  for option in ("ntasks-per-node=1", "requeue", "signal=TERM@120"):
    assert f"#SBATCH --{option}\n" in header


@pytest.mark.parametrize(("code", "requeued"), [(0, 0), (143, 1), (2, 0), (3, 0)])
def test_slurm_goes_on_after_a_time_limit(tmp_path, code, requeued):
  fake(tmp_path, "srun", f"exit {code}")
  fake(tmp_path, "scontrol", 'echo "$*" >> "$log"')
  env = {"SLURM_JOB_ID": "17", "SLURM_SUBMIT_DIR": str(tmp_path)}
  found, _ = call("slurm.sbatch", *FLAGS, env=env, path=tmp_path)
  assert found == (0 if requeued else code)
  log = tmp_path / "log"
  assert (log.read_text() if log.exists() else "") == "requeue 17\n" * requeued


def test_local_processes_are_told_their_places(tmp_path):
  fake(
    tmp_path, "python", 'echo "$*" >> "$log"', "[[ $* != *process_id=1* ]] || exit 3"
  )
  env = {"PYTHON": str(tmp_path / "python"), "PORT": "1234"}
  code, text = call("local.sh", "--dry_run", "3", *FLAGS, env=env)
  assert code == 0 and not (tmp_path / "log").exists()
  shown = [words[2:] for words in commands(text)]
  code, _ = call("local.sh", "3", *FLAGS, env=env)
  assert code == 3
  started = sorted((tmp_path / "log").read_text().splitlines())
  assert started == sorted(" ".join(words) for words in shown)
  for i, words in enumerate(shown):
    place = ["--coordinator=127.0.0.1:1234", "--num_processes=3", f"--process_id={i}"]
    assert words == ["-m", "launch.train", *place, *FLAGS]


def keys(value, **allowed):
  """Checks that a mapping has all required (True) and no unknown keys."""
  assert set(value) <= set(allowed), set(value) - set(allowed)
  assert {key for key, needed in allowed.items() if needed} <= set(value)
  return value


def test_the_gpu_check_ends_within_eight_minutes(tmp_path):
  code, text = call("gpu_check.sh", "--dry_run", str(tmp_path / "out"))
  limits = [int(words[1]) for words in commands(text)]
  assert code == 0 and sum(limits) <= 480 and not (tmp_path / "out").exists()
  named = " ".join(" ".join(words) for words in commands(text))
  for file in re.findall(r"tests/\w+\.py", named):
    assert (ROOT / file).exists()


def test_the_gpu_check_goes_on_after_a_fault(tmp_path):
  fake(tmp_path, "nvidia-smi", "echo a card")
  fake(tmp_path, "python", "[[ $* != *launch.check* ]] || exit 1")
  env = {"PYTHON": str(tmp_path / "python")}
  code, text = call("gpu_check.sh", str(tmp_path / "out"), env=env, path=tmp_path)
  found = dict(re.findall(r"^(\w+) +(ok|FAILED) +\d+ s$", text, re.M))
  assert code == 1 and found.pop("self_test") == "FAILED"
  assert set(found) == {"machine", "parity", "speed", "digits"}
  assert set(found.values()) == {"ok"} and "a card" in text


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_jobsets_have_the_structure_of_the_schema(kind):
  code, text = call("kubernetes.sh", "--dry_run", kind, *FLAGS, env=SET)
  assert code == 0 and "${" not in text
  top = keys(yaml.safe_load(text), apiVersion=True, kind=True, metadata=True, spec=True)
  assert (top["apiVersion"], top["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
  assert keys(top["metadata"], name=True, annotations=False)["name"] == "ncl"
  spec = keys(top["spec"], replicatedJobs=True, failurePolicy=True, network=False)
  policy = keys(spec["failurePolicy"], maxRestarts=True, rules=True)
  assert policy["rules"][0]["action"] == "FailJobSet"
  (group,) = spec["replicatedJobs"]
  keys(group, name=True, replicas=True, template=True)
  job = keys(
    group["template"]["spec"],
    parallelism=True,
    completions=True,
    completionMode=True,
    backoffLimit=True,
    podFailurePolicy=True,
    template=True,
  )
  assert job["parallelism"] == job["completions"] == 4
  assert job["completionMode"] == "Indexed"
  pod = keys(
    job["template"]["spec"],
    restartPolicy=True,
    terminationGracePeriodSeconds=True,
    nodeSelector=kind == "tpu",
    containers=True,
    volumes=True,
  )
  assert pod["restartPolicy"] == "Never"
  (container,) = pod["containers"]
  assert container["image"] == "here/ncl:1" and container["args"][-2:] == list(FLAGS)
  failure = job["podFailurePolicy"]["rules"][0]["onExitCodes"]
  assert failure == {
    "containerName": container["name"],
    "operator": "In",
    "values": [2, 3],
  }
  resource, count = {"tpu": ("google.com/tpu", 4), "gpu": ("nvidia.com/gpu", 8)}[kind]
  assert container["resources"]["limits"] == {resource: count}
  variables = {each["name"]: each["value"] for each in container["env"]}
  places = [mount["mountPath"] for mount in container["volumeMounts"]]
  assert variables.pop("JAX_COMPILATION_CACHE_DIR").startswith(f"{places[0]}/")
  ports = {port["containerPort"] for port in container["ports"]}
  if kind == "tpu":
    assert variables == {"JAX_PLATFORMS": "tpu,cpu"}
    # Where JAX's processes find each other on a slice.
    assert int(cloud_tpu_cluster.coordinator_port) in ports
  else:
    libraries = "/usr/local/nvidia/lib64"
    assert variables == {"JAX_PLATFORMS": "cuda,cpu", "LD_LIBRARY_PATH": libraries}
  mounted = {mount["name"] for mount in container["volumeMounts"]}
  assert mounted == {volume["name"] for volume in pod["volumes"]}
  if kind == "gpu":
    # JobSet names pods SET-GROUP-JOB-POD.SET.
    first = f"{top['metadata']['name']}-{group['name']}-0-0.{top['metadata']['name']}"
    assert container["args"][0] == f"--coordinator={first}:8476"
    assert spec["network"]["enableDNSHostnames"]


def test_nothing_is_deleted_where_dry_run_comes_last():
  code, text = call("kubernetes.sh", "delete", "--dry_run", env=SET)
  assert (code, text) == (0, "+ kubectl delete jobset ncl\n")


def test_a_manifest_that_would_break_is_refused():
  code, text = call("kubernetes.sh", "--dry_run", "tpu", '--name="x', env=SET)
  assert code == 2 and "cannot pass" in text


def test_the_image_is_made_of_what_is_there():
  lines = (ROOT / "Dockerfile").read_text().splitlines()
  copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
  assert all((ROOT / name).exists() for names in copied for name in names)
  extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
  assert {"tpu", "cuda", "dev"} <= set(extras)
  install = 'pip install --no-cache-dir --constraint constraints.txt ".[${EXTRA}]"'
  assert install in "\n".join(lines)


def test_every_requirement_is_pinned_to_a_version_that_it_allows():
  pins = {}
  for line in (ROOT / "constraints.txt").read_text().splitlines():
    if line and not line.startswith("#"):
      pin = Requirement(line)
      (only,) = pin.specifier
      assert only.operator == "=="
      pins[pin.name] = Version(only.version)
  lines = (ROOT / "requirements.txt").read_text().splitlines()
  wanted = [Requirement(line.split("#")[0]) for line in lines if line[:1] not in "# "]
  assert len(wanted) > 10
  for each in wanted:
    assert each.specifier.contains(pins[each.name.lower().replace("_", "-")]), each
  assert {"jaxlib", "libtpu", "jax-cuda13-plugin"} <= pins.keys()
