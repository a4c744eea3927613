r"""Turns embeddings into sparse non-negative codes.

  ncl encode --config=embeddings --input=embeddings.npz \
      --encoder=encoder.safetensors --out=codes.npz
  ncl encode --encoder=encoder.safetensors --input=more.npy --out=more.npz

With --config an encoder is trained and written to --encoder; without, the one that is
there is used. --input is an .npy file, or an .npz with the array --array: embeddings
[N, E], or [N, 2, E] with --config.positives=pairs. --out gets a matrix for
scipy.sparse.load_npz, its rows those of the input, of a pair one after the other; with
--dense an array named codes, for numpy.load.

Prints, of the codes whole and shortened to a half, a quarter and an eighth: dims;
active, the mean number of dimensions that a code uses, and most, the largest; live,
dimensions that any code uses; empty, codes that use none; bytes of an item; and
recall@10 of a tenth of the rows, 1,000 at most, on which no encoder is trained here.
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
_ARRAY = flags.DEFINE_string("array", "embeddings", "of an .npz: the embeddings")
_LABELS = flags.DEFINE_string("labels", "labels", "of an .npz: the labels")
_ENCODER = flags.DEFINE(
  cli.PATH, "encoder", None, "FILE.safetensors, new with --config"
)
_OUT = flags.DEFINE(cli.PATH, "out", "", "FILE.npz for the codes")
_DIMS = flags.DEFINE_integer("dims", 0, "shorten the written codes to so many")
_DENSE = flags.DEFINE_bool("dense", False, "write an array named codes, not sparse")


def main() -> None:
  """Encodes."""
  rows = program.run(
    _CONFIG.value,
    _INPUT.value or "",
    _ENCODER.value or "",
    _OUT.value or "",
    array=_ARRAY.value or "",
    labels=_LABELS.value or "",
    dims=_DIMS.value or 0,
    dense=_DENSE.value,
  )
  print(program.text(rows))


if __name__ == "__main__":
  cli.run(main, required=("input", "encoder"), fields=program.FIELDS)
