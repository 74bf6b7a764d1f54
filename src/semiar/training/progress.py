"""A progress bar with the losses that matter, and a Ctrl-C that loses nothing."""

from __future__ import annotations

import signal
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from transformers import TrainerCallback

from semiar.training.parallel import any_process

SHOWN = ("loss", "lm_loss", "draft_loss", "acceptance_length")


class Progress(TrainerCallback):
    """One line that moves, one line per evaluation that stays."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar = Bar(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
        )
        self.task: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.task = self.bar.add_task("", total=state.max_steps, completed=state.global_step, note="")
            self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.task is not None:
            self.bar.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if self.task is None or not logs:
            return
        note = "  ".join(f"{k} {v:.3f}" for k, v in logs.items() if k.removeprefix("eval_") in SHOWN)
        if any(name.startswith("eval_") for name in logs):
            self.bar.print(f"step {state.global_step}: {note}")
        elif note:
            self.bar.update(self.task, note=note)
            if not self.console.is_terminal:
                self.bar.print(f"step {state.global_step}/{state.max_steps}: {note}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.task is not None:
            self.bar.stop()


class Interruptible(TrainerCallback):
    """While entered, the first Ctrl-C ends the run after its step, with a checkpoint; the second one at once.

    Of several processes it is enough that one gets it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interruptible:
        try:
            self._before = signal.signal(signal.SIGINT, self._handle)
        except ValueError:  # not the main thread: whoever runs us handles signals
            self._before = None
        return self

    def __exit__(self, *details: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.asked = any_process(self.asked, args.device)
        if self.asked:
            control.should_save = control.should_training_stop = True
