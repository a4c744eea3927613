"""What the tables of studies.fashion.run show: labels, and where each number lies."""

STATS = ("feature_stats", "f")
# What a row is called, where its number lies in the results, what it is multiplied by.
Place = tuple[str, tuple[str, ...], float]

ACCURACY: tuple[Place, ...] = (
  ("linear probe, h, %", ("linear_probe", "h", "accuracy"), 100),
  ("linear probe, f, %", ("linear_probe", "f", "accuracy"), 100),
  ("linear probe by SGD, h, %", ("linear_probe_sgd", "h", "accuracy"), 100),
  ("linear probe by SGD, f, %", ("linear_probe_sgd", "f", "accuracy"), 100),
  ("nearest neighbours, h, %", ("knn", "h", "accuracy"), 100),
  ("nearest neighbours, f, %", ("knn", "f", "accuracy"), 100),
  ("finetuned, 1 % of the labels, %", ("finetune_1", "h", "accuracy"), 100),
  ("finetuned, 10 %, %", ("finetune_10", "h", "accuracy"), 100),
  ("finetuned, all, %", ("finetune", "h", "accuracy"), 100),
  ("retrieval P@10, h, %", ("retrieval", "h", "precision"), 100),
  ("retrieval P@10, f, %", ("retrieval", "f", "precision"), 100),
  ("retrieval mAP@10, h, %", ("retrieval", "h", "average_precision"), 100),
  ("retrieval mAP@10, f, %", ("retrieval", "f", "average_precision"), 100),
)
PROPERTIES: tuple[Place, ...] = (
  ("sparsity, %", (*STATS, "sparsity"), 100),
  ("sparsity of live dimensions, %", (*STATS, "sparsity_live"), 100),
  ("active dimensions of an image (L0)", (*STATS, "l0"), 1),
  ("live dimensions of 256", (*STATS, "live_dimensions"), 1),
  ("all-zero images, %", (*STATS, "zero_rows"), 100),
  ("consistency, abs(f) > 1e-5, %", (*STATS, "consistency_abs"), 100),
  ("- labels shuffled, %", (*STATS, "consistency_abs_chance"), 100),
  ("- by activity, %", (*STATS, "consistency_abs_weighted"), 100),
  ("consistency, f > 0, %", (*STATS, "consistency_positive"), 100),
  ("- labels shuffled, %", (*STATS, "consistency_positive_chance"), 100),
  ("- by activity, %", (*STATS, "consistency_positive_weighted"), 100),
  ("purity at 3 % activity, %", (*STATS, "purity"), 100),
  ("- labels shuffled, %", (*STATS, "purity_chance"), 100),
  ("- of dimensions with such activity, %", (*STATS, "purity_reached"), 100),
  ("- how many these are", (*STATS, "reached_dimensions"), 1),
  ("- by activity, %", (*STATS, "purity_weighted"), 100),
  ("purity at 10 % activity, %", (*STATS, "purity_0.1"), 100),
  ("label entropy, nats", (*STATS, "label_entropy"), 1),
  ("mean correlation abs(C - I)", (*STATS, "orthogonality"), 1),
  ("effective rank", (*STATS, "effective_rank"), 1),
  ("SEPIN@1, 1000 nats", ("sepin", "f", "sepin@1"), 1000),
  ("- of noise", ("sepin", "f", "noise_sepin@1"), 1000),
  ("SEPIN@10, 1000 nats", ("sepin", "f", "sepin@10"), 1000),
  ("SEPIN@100, 1000 nats", ("sepin", "f", "sepin@100"), 1000),
  ("SEPIN@all, 1000 nats", ("sepin", "f", "sepin@all"), 1000),
  ("two views activate the same, %", ("sepin", "f", "view_agreement"), 100),
  ("- views of different images, %", ("sepin", "f", "view_agreement_chance"), 100),
  ("same axes in another seed", ("axes", "f", "correlation"), 1),
  ("- its axes rotated at random", ("axes", "f", "correlation_rotated"), 1),
  ("- images shuffled", ("axes", "f", "correlation_chance"), 1),
)
ROWS = {  # of the selection's table
  "all": "all 256",
  "signed": "all 256, before the transform",
  "random": "64 at random",
  "random_live": "64 at random of the live",
  "ea_signed": "64 of largest expected activation, signed",
  "ea_relu": "64 of largest expected activation, rectified",
  "variance": "64 of largest variance",
  "pca": "64 principal components",
}
SELECTION: tuple[Place, ...] = tuple(
  (f"{label}: {what}, %", ("selection", row, key), 100)
  for key, what in (("probe", "probe"), ("retrieval", "P@10"))
  for row, label in ROWS.items()
)
WRONG = ("0.2", "0.4", "0.6", "0.8")
SHOTS = ("1", "5", "10")
ROBUSTNESS: tuple[Place, ...] = tuple(
  place
  for layer in ("h", "f")
  for place in (
    (f"clean, {layer}, %", ("robustness", layer, "clean"), 100.0),
    (f"corrupted, {layer}, %", ("robustness", layer, "corrupted"), 100.0),
    *(
      (
        f"{100 * float(share):.0f} % wrong labels, {layer}, %",
        ("robustness", layer, "label_noise", share),
        100.0,
      )
      for share in WRONG
    ),
    *(
      (
        f"{shots} image(s) a class, {layer}, %",
        ("robustness", layer, "few_shot", shots, "mean"),
        100.0,
      )
      for shots in SHOTS
    ),
  )
)
ARMS = {
  "cl": "CL",
  "ncl": "NCL",
  "untrained": "untrained + transform",
  "untrained_calibrated": "untrained, calibrated + transform",
  "cl_map": "CL + transform",
  "cl_matched": "CL at NCL's activity",
  "cl_varimax": "CL + varimax",
  "cl_varimax_map": "CL + varimax + transform",
  "cl_ica": "CL + ICA",
  "pixels_pca": "pixels: PCA",
  "pixels_nmf": "pixels: NMF",
  "pixels_kmeans": "pixels: k-means",
  "h_pca": "h of CL: PCA",
  "h_nmf": "h of CL: NMF",
  "h_kmeans": "h of CL: k-means",
}
CONTROLS: tuple[Place, ...] = (
  ("sparsity", (*STATS, "sparsity"), 100),
  ("live", (*STATS, "live_dimensions"), 1),
  ("cons.", (*STATS, "consistency_abs"), 100),
  ("chance", (*STATS, "consistency_abs_chance"), 100),
  ("purity 3 %", (*STATS, "purity"), 100),
  ("- reached", (*STATS, "purity_reached"), 100),
  ("- by activity", (*STATS, "purity_weighted"), 100),
  ("abs(C - I)", (*STATS, "orthogonality"), 1),
  ("rank", (*STATS, "effective_rank"), 1),
  ("SEPIN@1", ("sepin", "f", "sepin@1"), 1000),
  ("SEPIN@10", ("sepin", "f", "sepin@10"), 1000),
  ("SEPIN@all", ("sepin", "f", "sepin@all"), 1000),
  ("kNN f", ("knn", "f", "accuracy"), 100),
  ("probe f", ("linear_probe", "f", "accuracy"), 100),
  ("P@10 f", ("retrieval", "f", "precision"), 100),
  ("EA quarter", ("selection", "ea_signed", "probe"), 100),
  ("kNN h", ("knn", "h", "accuracy"), 100),
  ("probe h", ("linear_probe", "h", "accuracy"), 100),
)
SWEEP: tuple[Place, ...] = (
  ("kNN h", ("knn", "h", "accuracy"), 100),
  ("kNN f", ("knn", "f", "accuracy"), 100),
  ("probe h", ("linear_probe", "h", "accuracy"), 100),
  ("probe f", ("linear_probe", "f", "accuracy"), 100),
  ("sparsity", (*STATS, "sparsity"), 100),
  ("live", (*STATS, "live_dimensions"), 1),
  ("cons.", (*STATS, "consistency_abs"), 100),
  ("purity 3 %", (*STATS, "purity"), 100),
  ("- reached", (*STATS, "purity_reached"), 100),
  ("abs(C - I)", (*STATS, "orthogonality"), 1),
  ("rank", (*STATS, "effective_rank"), 1),
  ("SEPIN@1", ("sepin", "f", "sepin@1"), 1000),
  ("SEPIN@10", ("sepin", "f", "sepin@10"), 1000),
  ("SEPIN@all", ("sepin", "f", "sepin@all"), 1000),
)
