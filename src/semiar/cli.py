"""The command line: each verb builds its configuration and calls one function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser, Namespace, set_parsing_settings
from rich.console import Console
from transformers.utils import logging

from semiar import api
from semiar.attach import AttachSettings, attach
from semiar.bench.report import redraw
from semiar.bench.run import BenchSettings, run_bench
from semiar.bench.verify import VerifySettings, publish, verify
from semiar.compare import advise as advising
from semiar.compare import command as comparing
from semiar.compare.config import CompareConfig
from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.data.chat import ChatRenderer
from semiar.data.preview import preview
from semiar.data.tasks.registry import load_any
from semiar.demo.demo import DemoSettings, run_demo
from semiar.errors import SemiarError
from semiar.importing.run import ImportSettings, import_drafter
from semiar.options import complaint, instantiate, load_pair, load_settings, results_folder
from semiar.regenerate import RegenerateSettings, regenerate
from semiar.targets import LoadSettings, Target, load_model, load_tokenizer
from semiar.training.config import TrainConfig
from semiar.training.run import train
from semiar.version import __version__

set_parsing_settings(docstring_parse_attribute_docstrings=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the ``semiar`` command; returns the exit code: 0, 1 (verify failed), 2 (wrong input), 130."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        options = parser().parse_args(words)
        verb, chosen = options.verb, options[options.verb]
        return VERBS[verb][1](chosen) or 0
    except (SemiarError, OSError) as error:
        if debug:
            raise
        print(f"semiar: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except ArgumentError as error:
        print(f"semiar: {complaint(error, words, VERBS)}", file=sys.stderr)
        return 2
    except SystemExit as done:  # --help, --version, --print_config
        return int(done.code or 0)
    except KeyboardInterrupt:
        print("semiar: interrupted", file=sys.stderr)
        return 130


def parser() -> ArgumentParser:
    """The whole command line; an unknown key, in a file or on the line, is an error (exit code 2)."""
    about = "Fine-tune an LLM with its draft model; decode faster, losslessly."
    # no abbreviations: --n, several answers elsewhere, would be taken for --num_speculative_tokens
    top = ArgumentParser(prog="semiar", description=about, exit_on_error=False, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"semiar {__version__}")
    verbs = top.add_subcommands(dest="verb", required=True)
    for name, (build, _, help_text) in VERBS.items():
        one = ArgumentParser(description=f"{help_text}  Add --debug for tracebacks.", exit_on_error=False)
        build(one)
        verbs.add_subcommand(name, one, help=help_text)
    return top


# -- verbs -----------------------------------------------------------------------------------------------------------


def _train_options(one: ArgumentParser) -> None:
    one.add_argument("--config", action="config", help="YAML recipe; options after it override it")
    one.add_class_arguments(TrainConfig, None)
    one.add_argument("--resume", type=bool, default=False, nargs="?", const=True, help="continue an interrupted run")
    one.add_argument("--dry_run", "--dry-run", type=bool, default=False, nargs="?", const=True, help="only estimate")


def _train(options: Namespace) -> int:
    done = train(instantiate(TrainConfig, options), resume=options.resume, dry_run=options.dry_run)
    return 0 if done or options.dry_run else 130


def _pair_options(one: ArgumentParser, more: str = "") -> None:
    one.add_argument("run", type=str, help=f"folder that semiar train wrote{more}")
    one.add_class_arguments(LoadSettings, "load")


def _generate_options(one: ArgumentParser) -> None:
    _pair_options(one)
    one.add_argument("prompt", type=str, help="the prompt; - reads standard input")
    one.add_class_arguments(Sampling, None)
    one.add_class_arguments(Plan, "plan", skip={"count"})
    one.add_argument("--max_new_tokens", type=int, default=256)
    one.add_argument("--num_speculative_tokens", type=int | None, default=None, help="K; 0 decodes plainly")
    one.add_argument("--seed", type=int | None, default=None)
    one.add_argument("--verify", type=str, default="exact", help="exact, block, or none (LOSSY: unverified drafts)")


def _generate(options: Namespace) -> None:
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.min_p)
    pair = load_pair(options)
    pair.check_count(options.num_speculative_tokens)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    if options.verify == "none":
        print("semiar: verify none is LOSSY: the text is not what the target would write", file=sys.stderr)
    pieces = api.stream_one(
        pair.target, pair.drafter, pair.tokenizer, pair.encode(prompt), pair.limits(options.max_new_tokens), sampling,
        seed=options.seed, num_speculative_tokens=options.num_speculative_tokens, rule=options.verify,
        plan=instantiate(Plan, options.plan),
    )  # fmt: skip
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _bench_options(one: ArgumentParser) -> None:
    _pair_options(one)
    one.add_argument("--out", type=str, default="", help="folder of trace, metrics and report; default RUN/bench")
    one.add_class_arguments(BenchSettings, None, skip={"plan"})
    one.add_class_arguments(Plan, "plan", skip={"count"})


def _bench(options: Namespace) -> None:
    settings = instantiate(BenchSettings, options)
    pair = load_pair(options)
    out = Path(options.out) if options.out else results_folder(options) / "bench"
    console = Console()
    base = Target(load_model(pair.base, load_settings(options))) if settings.base else None
    run_bench(pair, settings, out / "trace.jsonl", base, console)
    redraw(out, console)


def _report_options(one: ArgumentParser) -> None:
    one.add_argument("folder", type=str, help="folder that holds a trace.jsonl")


def _report(options: Namespace) -> None:
    redraw(Path(options.folder), Console())


def _verify_options(one: ArgumentParser) -> None:
    _pair_options(one)
    one.add_argument("--task", type=str, default="", help="task or data source; default: the one trained on")
    one.add_argument("--folder", type=str, default="", help="local folder of the named tasks")
    one.add_argument("--split", type=str, default="test")
    one.add_class_arguments(VerifySettings, None)


def _verify(options: Namespace) -> int:
    settings = instantiate(VerifySettings, options)
    if options.load.dtype == "auto":
        options.load.dtype = "float32"
    pair = load_pair(options)
    console = Console()
    folder = options.folder or pair.run.get("samples", {}).get("folder") or None
    source = options.task or pair.run.get("data", "")
    records = load_any(source, options.split, folder, settings.prompts, settings.seed).records
    prompts = [pair.encode(record.prompt_messages) for record in records]
    found = verify(pair, prompts, pair.limits(1).end_ids, settings, console)
    publish(found, results_folder(options) / "certificate.json", console)
    return 0 if found.passed else 1


def _attach_options(one: ArgumentParser) -> None:
    _pair_options(one, ", or a model: hub id or folder")
    one.add_class_arguments(AttachSettings, None)


def _attach(options: Namespace) -> None:
    attach(options.run, instantiate(AttachSettings, options), load_settings(options), Console(stderr=True))


def _data_options(one: ArgumentParser) -> None:
    one.add_argument("source", type=str, help="task, file or hub id")
    one.add_argument("--model", type=str, required=True, help="whose tokenizer and chat template render it")
    one.add_argument("--split", type=str, default="train")
    one.add_argument("--folder", type=str, default="", help="local folder of the named tasks")
    one.add_argument("--limit", type=int, default=0)
    one.add_argument("--max_length", type=int, default=1024)


def _data(options: Namespace) -> None:
    records = load_any(options.source, options.split, options.folder or None, options.limit or None)
    preview(records, ChatRenderer(load_tokenizer(options.model)), options.max_length, Console())


def _regenerate_options(one: ArgumentParser) -> None:
    _pair_options(one, ", or a model: hub id or folder")
    one.add_argument("--adapter", type=str, default="", help="PEFT adapter of a target that is given as a model")
    one.add_class_arguments(RegenerateSettings, None)


def _regenerate(options: Namespace) -> None:
    console = Console()
    pair = api.Pair.open(options.run, load_settings(options), adapter=options.adapter)
    total = regenerate(pair, instantiate(RegenerateSettings, options), console)
    console.print(f"{total} samples in {options.out}", soft_wrap=True)


def _import_options(one: ArgumentParser) -> None:
    one.add_argument("checkpoint", type=str, help="file or folder with the original tensors")
    one.add_class_arguments(ImportSettings, None, skip={"checkpoint"})


def _import(options: Namespace) -> None:
    import_drafter(instantiate(ImportSettings, options), Console())


def _demo_options(one: ArgumentParser) -> None:
    one.add_class_arguments(DemoSettings, None)


def _demo(options: Namespace) -> int:
    return run_demo(instantiate(DemoSettings, options), main, Console())


def _compare(options: Namespace) -> int:
    options.tasks = comparing.tasks_of(options.tasks)
    return comparing.compare(instantiate(CompareConfig, options), options, Console())


VERBS: dict[str, tuple[Callable[[ArgumentParser], None], Callable[[Namespace], int | None], str]] = {
    "train": (_train_options, _train, "Fine-tune a target and its drafter."),
    "generate": (_generate_options, _generate, "Write text with a trained pair."),
    "bench": (_bench_options, _bench, "Measure plain against speculative decoding."),
    "verify": (_verify_options, _verify, "Prove that a pair decodes losslessly."),
    "attach": (_attach_options, _attach, "Put a drafter that needs no training beside a target."),
    "data": (_data_options, _data, "Show samples as a model will see them, with the loss mask."),
    "regenerate": (_regenerate_options, _regenerate, "Replace a data set's answers by the target's own."),
    "advise": (advising.options, advising.run, "Say whether and how speculation will pay for a target on your data."),
    "compare": (comparing.options, _compare, "Train and measure many drafters under one budget."),
    "import": (_import_options, _import, "Make a pair of a model and a drafter trained by its original project."),
    "report": (_report_options, _report, "Draw the report of a trace again."),
    "demo": (_demo_options, _demo, "Run the whole line on a small model and a generated text-to-SQL set."),
}


if __name__ == "__main__":
    sys.exit(main())
