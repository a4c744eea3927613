"""The launchers: what they would do, and what they do when machines come and go."""

import pathlib
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

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
    ("create", ["create", "pod", "--zone=z", "--accelerator-type=v4-64", "--spot"]),
    ("install", ["scp", "--worker=all", "/tmp/ncl_jax.tar.gz"]),
    ("install", ["ssh", "pip install '.[tpu]'", "mount -t nfs 10.0.0.2:/runs /runs"]),
    ("run", ["ssh", "--worker=all", "-m launch.train --distributed", r"/runs/a\ b"]),
    ("keep", ["ssh", "--worker=all", "-m launch.train --distributed", r"/runs/a\ b"]),
    ("delete", ["delete", "pod", "--quiet"]),
  ],
)
def test_tpu_commands(action, words):
  arguments = FLAGS if action in ("run", "keep") else ()
  code, text = call("tpu_vm.sh", "--dry_run", action, *arguments, env=TPU)
  assert code == 0
  said = " ".join(" ".join(words) for words in commands(text))
  assert all(word in said for word in words), said


def test_a_preempted_tpu_is_made_anew_and_training_goes_on(tmp_path):
  """Taken away in mid-run, then no capacity once, then back, then done."""
  fake(
    tmp_path,
    "gcloud",
    'echo "$4" >> "$log"',
    f'state="{tmp_path}/state"',
    "case $4 in",
    '  describe) [[ -e $state ]] && cat "$state" || exit 1 ;;',
    '  create) [[ -e "$log.full" ]] || { touch "$log.full"; exit 1; }',
    '    echo READY > "$state" ;;',
    '  delete) rm "$state" ;;',
    '  ssh) if [[ $* == *launch.train* && ! -e "$log.once" ]]; then',
    '    touch "$log.once"; echo PREEMPTED > "$state"; exit 255; fi ;;',
    "esac",
  )
  fake(tmp_path, "sleep", 'echo "sleep $1" >> "$log"')
  fake(tmp_path, "git")
  (tmp_path / "state").write_text("READY")
  code, _ = call("tpu_vm.sh", "keep", *FLAGS, env=TPU, path=tmp_path)
  assert code == 0
  done = [x for x in (tmp_path / "log").read_text().split("\n") if x != "describe"]
  install = ["scp", "ssh", "ssh"]
  lost = ["ssh", "sleep 60", "delete", "create", "sleep 60"]
  assert done[:-1] == [*lost, "create", *install, "ssh"]


def test_a_failing_training_is_not_repeated_on_a_healthy_tpu(tmp_path):
  fake(tmp_path, "gcloud", "[[ $4 == describe ]] && echo READY || exit 2")
  fake(tmp_path, "sleep")
  assert call("tpu_vm.sh", "keep", *FLAGS, env=TPU, path=tmp_path)[0] == 2


def test_slurm_uses_all_gpus_of_a_host(tmp_path):
  env = {"SLURM_GPUS_ON_NODE": "4", "PYTHON": "python3"}
  code, text = call("slurm.sbatch", "--dry_run", *FLAGS, env=env)
  (words,) = commands(text)
  assert code == 0 and words[0] == "JAX_LOCAL_DEVICE_IDS=0,1,2,3"
  assert words[3:7] == ["python3", "-m", "launch.train", "--distributed"]
  assert words[7:] == list(FLAGS)
  header = (ROOT / "launch" / "slurm.sbatch").read_text()
  for option in ("ntasks-per-node=1", "requeue", "signal=TERM@120"):
    assert f"#SBATCH --{option}\n" in header


@pytest.mark.parametrize(("code", "requeued"), [(0, 0), (143, 1), (2, 0)])
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
  mounted = {mount["name"] for mount in container["volumeMounts"]}
  assert mounted == {volume["name"] for volume in pod["volumes"]}
  if kind == "gpu":
    # JobSet names pods SET-GROUP-JOB-POD.SET.
    first = f"{top['metadata']['name']}-{group['name']}-0-0.{top['metadata']['name']}"
    assert container["args"][0] == f"--coordinator={first}:8476"
    assert spec["network"]["enableDNSHostnames"]


def test_a_manifest_that_would_break_is_refused():
  code, text = call("kubernetes.sh", "--dry_run", "tpu", '--name="x', env=SET)
  assert code == 2 and "cannot pass" in text


def test_the_image_is_made_of_what_is_there():
  lines = (ROOT / "Dockerfile").read_text().splitlines()
  copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
  assert all((ROOT / name).exists() for names in copied for name in names)
  extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
  assert {"tpu", "cuda", "dev"} <= set(extras)
  assert 'pip install --no-cache-dir ".[${EXTRA}]"' in "\n".join(lines)
