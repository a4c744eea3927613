r"""Turns embeddings into sparse non-negative codes.

  ncl encode --config=embeddings --input=embeddings.npz \
      --encoder=encoder.safetensors --out=codes.npz
  ncl encode --encoder=encoder.safetensors --input=more.npy --out=more.npz

With --config a new encoder is trained and written to --encoder. Without it, the
existing encoder is used. --input is an .npy file, or an .npz with the array --array:
embeddings [N, E], or [N, 2, E] with --config.positives=pairs. --out is a matrix for
scipy.sparse.load_npz with a row for each input row; the rows of a pair follow each
other. With --dense it is an array named codes, for numpy.load.

Prints a line for the full codes and for their first half, quarter and eighth: dims;
active, the mean number of active dimensions in a code, and most, the largest;
active_dims, dimensions that are active in any code; all_zero, the number of all-zero
codes; bytes of a code; and recall@10, whose queries are a tenth of the rows, at most
1,000, that are left out of training.
"""

from absl import flags
from ml_collections import config_flags

from ncl_jax import cli
from ncl_jax.encoder import program

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "the recipe embeddings, or a file like it"
)
_INPUT = flags.DEFINE(
  cli.ARRAYS, "input", None, "FILE.npy or FILE.npz, or arrays:FILE.npz"
)
_ARRAY = flags.DEFINE_string("array", "embeddings", "name of the embeddings in an .npz")
_LABELS = flags.DEFINE_string("labels", "labels", "name of the labels in an .npz")
_ENCODER = flags.DEFINE(
  cli.PATH, "encoder", None, "FILE.safetensors, new with --config"
)
_OUT = flags.DEFINE(cli.PATH, "out", "", "FILE.npz for the codes")
_DIMS = flags.DEFINE_integer("dims", 0, "dimensions of the written codes; 0: all")
_DENSE = flags.DEFINE_bool("dense", False, "write a dense array named codes")


def main() -> None:
  """Encodes."""
  rows = program.run(
    _CONFIG.value,
    program.Input(_INPUT.value or "", _ARRAY.value or "", _LABELS.value or ""),
    _ENCODER.value or "",
    program.Output(_OUT.value or "", _DIMS.value or 0, _DENSE.value),
  )
  print(program.text(rows))


if __name__ == "__main__":
  cli.run(main, required=("input", "encoder"), fields=program.FIELDS)
