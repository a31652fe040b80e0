"""The table of docs/trainers.md: what stands in each cell, and the test behind it.

A cell is what the page shows; after ``<-`` comes the test that must hold, as ``file::test[case]``, where ``case`` names
an entry of one of that file's tables of cases. ``your loop``: the user owns it; ``–``: not tested.
"""

TRAINERS = ("Transformers", "accelerate", "Lightning, automatic", "Lightning, manual", "skorch")
LOOP, UNTESTED = "your loop", "–"
PLAIN = "test_equals_the_plain_loop"
SAME = "test_at_radius_zero_nothing_differs_from"
RANKS = "test_ranks::test_ranks_agree_with_each_other_and_with_one_process"
SKORCH = "test_pages::test_callbacks_and_checkpoints_of_skorch"
RECIPES = "test_pages::test_recipes_run_and_skorch_equals_a_plain_loop"
REFUSED = "test_what_cannot_be_right_is_refused_with_a_sentence"
SCALER = "fp16 with a scaler²"

TABLE: dict[str, tuple[str, str, str, str, str]] = {
    "one line": (
        f"`SharpnessAwareTrainer(..., rule=sam(0.05))` <- {RECIPES}",
        f"`prepare(accelerator, model, base, rule)` <- {RECIPES}",
        f"`SharpnessAwareModule` <- {RECIPES}",
        "`self.optimizers()` <- test_lightning::test_manual_optimization",
        f"`initialize_optimizer` <- {RECIPES}",
    ),
    "clean loss, logged and counted once": (
        f"✓ <- test_transformers::{PLAIN}[plain]",
        f"✓ <- test_accelerate::{PLAIN}[plain]",
        f"✓ with torchmetrics <- test_lightning::{PLAIN}[plain]",
        "✓ <- test_lightning::test_manual_optimization",
        f"✓ <- {RECIPES}",
    ),
    "gradient accumulation, one perturbation for the step (`full`)": (
        f"✓ <- test_transformers::{PLAIN}[accumulated with a remainder]",
        f"✓ <- test_accelerate::{PLAIN}[accumulated, full]",
        f"✓ <- test_lightning::{PLAIN}[accumulated with a remainder]",
        LOOP,
        UNTESTED,
    ),
    "gradient accumulation, one for each batch (`m`)": (
        f"✓ <- test_transformers::{PLAIN}[accumulated, m]",
        f"✓ <- test_accelerate::{PLAIN}[accumulated, m]",
        f"{UNTESTED}¹",
        LOOP,
        UNTESTED,
    ),
    "clipping": (
        f"✓ <- test_transformers::{PLAIN}[clipped]",
        f"✓ <- test_accelerate::{PLAIN}[clipped]",
        f"✓ by norm, by value, your own <- test_lightning::{SAME}_plain_lightning[clipped by value]",
        LOOP,
        f"✓ <- {SKORCH}",
    ),
    "schedulers, warm-up": (
        f"✓ <- test_transformers::{PLAIN}[cosine with warm-up]",
        f"✓ <- test_accelerate::{PLAIN}[plain]",
        f"✓ <- test_lightning::{SAME}_plain_lightning[a schedule of rate and momentum]",
        LOOP,
        f"✓ <- {SKORCH}",
    ),
    "evaluation in between, best model, early stopping": (
        f"✓ <- test_transformers::{SAME}_the_plain_trainer[the best model, early stopping]",
        LOOP,
        UNTESTED,
        UNTESTED,
        f"✓ <- {SKORCH}",
    ),
    "averages of the weights (SWA, EMA)": (
        UNTESTED,
        LOOP,
        f"✓ <- test_lightning::{SAME}_plain_lightning[moving average of the weights]",
        LOOP,
        UNTESTED,
    ),
    "bf16": (
        f"✓ <- test_transformers::{PLAIN}[bf16]",
        f"✓ <- test_accelerate::{PLAIN}[bf16]",
        f"✓ <- test_lightning::{PLAIN}[bf16-mixed]",
        LOOP,
        UNTESTED,
    ),
    SCALER: (
        "✓ <- test_transformers::test_with_a_scaler_the_gradient_is_unscaled_once_and_an_overflow_skips_the_step_and_the_"
        "scheduler",
        "✓ <- test_accelerate::test_a_scaler_scales_once_and_an_overflow_skips_the_step_and_the_scheduler",
        "✓ <- test_lightning::test_16_mixed_scales_once_clips_and_skips_steps_that_overflow",
        LOOP,
        UNTESTED,
    ),
    "`torch.compile`": (
        f"✓ <- test_transformers::{SAME}_the_plain_trainer[compiled]",
        UNTESTED,
        UNTESTED,
        UNTESTED,
        UNTESTED,
    ),
    "resume from a checkpoint": (
        "✓ <- test_transformers::test_resuming_from_a_checkpoint_is_exact",
        "✓ `save_state` <- test_accelerate::test_save_state_and_load_state_resume_exactly",
        "✓ <- test_lightning::test_resuming_from_a_checkpoint_is_exact",
        UNTESTED,
        f"✓ <- {SKORCH}",
    ),
    'DDP, `perturbation="global"` and `"local"`': (
        f"✓ <- {RANKS}[local]",
        f"✓ <- {RANKS}[local]",
        f"✓ <- {RANKS}[local]",
        UNTESTED,
        UNTESTED,
    ),
    "FSDP2": (UNTESTED, f"✓³ <- {RANKS}[full]", UNTESTED, UNTESTED, UNTESTED),
    "gradient checkpointing, tied weights, masked tokens, schedule-free bases": (
        f"✓ <- test_transformers::{PLAIN}[reentrant checkpointing]",
        UNTESTED,
        UNTESTED,
        UNTESTED,
        UNTESTED,
    ),
    "label smoothing": (
        "✓ <- test_transformers::test_label_smoothing",
        UNTESTED,
        UNTESTED,
        UNTESTED,
        UNTESTED,
    ),
    "PEFT, LoRA": (
        "✓ <- test_transformers::test_lora_moves_only_what_is_trained",
        UNTESTED,
        UNTESTED,
        UNTESTED,
        UNTESTED,
    ),
    "rules that cut the batch (`m_sharpness`)": (
        "✓ <- test_transformers::test_m_sharpness_takes_each_part_with_its_own_number_of_tokens",
        "✓ <- test_accelerate::test_m_sharpness_slices_the_batch",
        f"refused <- test_lightning::{REFUSED}",
        LOOP,
        UNTESTED,
    ),
    "rules that need each example's loss (`esam`, `imb_sam`)": (
        f"refused <- test_transformers::{REFUSED}",
        f"refused <- test_accelerate::{REFUSED}",
        f"refused <- test_lightning::{REFUSED}",
        LOOP,
        UNTESTED,
    ),
    "DeepSpeed, Megatron-LM": (
        f"refused <- test_transformers::{REFUSED}",
        f"refused <- test_accelerate::{REFUSED}",
        UNTESTED,
        UNTESTED,
        UNTESTED,
    ),
}


def shown(cell: str) -> str:
    """What the page has in a cell."""
    return cell.partition(" <- ")[0]


def markdown() -> str:
    """The table, as the page has it."""
    rows = [["", *TRAINERS], ["---"] * (len(TRAINERS) + 1)]
    rows += [[name, *map(shown, cells)] for name, cells in TABLE.items()]
    return "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in rows)


def tests() -> list[tuple[str, str, str]]:
    """The file, the test and the case (or nothing) behind each cell that claims something."""
    found = []
    for cells in TABLE.values():
        for cell in cells:
            _, _, test = cell.partition(" <- ")
            if test:
                file, _, rest = test.partition("::")
                function, _, case = rest.partition("[")
                found.append((file, function, case.removesuffix("]")))
    return found
