"""Checks the prose of the repository: documents, comments and docstrings.

    python3 lint/prose.py [PATH ...]

Reports each fault as `file:line: fault` and exits with status 1 if there is one. Four rules hold:
a sentence has at most 30 words; a paragraph of a document has at most six lines; no text has a
term of `lint/words.txt`; and a doc comment of Rust begins with a word that says what the item is.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SENTENCE_WORDS_MAX = 30
PARAGRAPH_LINES_MAX = 6

# Generated pages are as good as the text they are made from, and that is checked.
GENERATED = {"docs/reference/options.md", "docs/reference/python.md"}
UNCHECKED = ("docs/bench/results/", "lint/", "crates/pgspate-cli/tests/tidy/")

# A doc comment that begins with one of these has to be read twice to learn what the item is.
UNCLEAR_START = re.compile(r"(That|The same|The other|It|They|One that|Those|These|Of|As)\b")

SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!etc)[.!?][)\"']?(?=\s|$)")


@dataclass
class Block:
    """Text that belongs together: a paragraph, an item of a list, a cell, or a comment."""

    lines: list[tuple[int, str]]
    is_paragraph: bool = False
    is_doc_comment: bool = False

    def text(self) -> str:
        return " ".join(line.strip() for _, line in self.lines)

    def line_of(self, offset: int) -> int:
        """Returns the number of the line that has the character at `offset` of `text()`."""
        for number, line in self.lines:
            offset -= len(line.strip()) + 1
            if offset < 0:
                return number
        return self.lines[-1][0]


def main(paths: list[str]) -> int:
    words = read_words(ROOT / "lint/words.txt")
    count = 0
    for path in files(paths):
        for number, fault in sorted(check(path, words)):
            print(f"{path.relative_to(ROOT)}:{number}: {fault}")
            count += 1
    if count:
        print(f"{count} {'fault' if count == 1 else 'faults'}", file=sys.stderr)
    return 1 if count else 0


def files(paths: list[str]) -> list[Path]:
    """Returns the files to check: those below `paths`, or the whole repository."""
    if not paths:
        command = ["git", "ls-files", "-co", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        paths = listed.stdout.splitlines()
    found: list[Path] = []
    for name in paths:
        path = (ROOT / name).resolve() if not Path(name).exists() else Path(name).resolve()
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in below if file.is_file() and is_checked(file)]
    return found


def is_checked(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    is_text = path.suffix in {".md", ".rs", ".py"}
    is_built = {"target", "node_modules"} & set(path.relative_to(ROOT).parts[:2])
    return is_text and not is_built and name not in GENERATED and not name.startswith(UNCHECKED)


def read_words(path: Path) -> list[tuple[re.Pattern[str], str]]:
    """Reads lines of `pattern => what to write instead`."""
    words = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, _, instead = line.partition(" => ")
            words.append((re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead))
    return words


def check(path: Path, words: list[tuple[re.Pattern[str], str]]) -> Iterator[tuple[int, str]]:
    text = path.read_text()
    blocks = {".md": markdown, ".rs": rust, ".py": python}[path.suffix](text)
    for block in blocks:
        if block.is_paragraph and len(block.lines) > PARAGRAPH_LINES_MAX:
            yield block.lines[0][0], f"paragraph of {len(block.lines)} lines"
        text = block.text()
        yield from ((block.line_of(at), fault) for at, fault in long_sentences(text))
        spoken = without_code(text)
        for pattern, instead in words:
            for match in pattern.finditer(spoken):
                fault = f'"{match[0]}": write {instead}'
                yield block.line_of(match.start()), fault
        if block.is_doc_comment and (start := UNCLEAR_START.match(text)):
            yield block.lines[0][0], f'doc comment begins with "{start[0]}"'


def without_code(text: str) -> str:
    """Blanks what stands between backticks, so that offsets stay as they are."""
    return re.sub(r"`[^`]*`", lambda code: "`" + "x" * (len(code[0]) - 2) + "`", text)


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    spoken = re.sub(r"\]\([^)]*\)", lambda link: "]" + "_" * (len(link[0]) - 1), without_code(text))
    for end in [*SENTENCE_END.finditer(spoken), None]:
        stop = end.end() if end else len(spoken)
        sentence = spoken[start:stop].strip()
        count = sum(1 for word in sentence.split() if re.search(r"\w", word))
        if count > SENTENCE_WORDS_MAX:
            yield start + 1, f'sentence of {count} words: "{sentence[:40]}..."'
        start = stop


def markdown(text: str) -> Iterator[Block]:
    lines: list[tuple[int, str]] = []
    is_code, is_comment = False, False
    is_paragraph = True
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
            line = ""
        elif is_code:
            continue
        is_comment = is_comment or line.lstrip().startswith("<!--")
        if is_comment:
            is_comment = "-->" not in line
            line = ""
        if line.startswith("|"):
            yield from (Block([(number, cell)]) for cell in line.split("|"))
            line = ""
        item = re.match(r"\s*(?:[-*+]|\d+\.|#+|>|!!!)\s", line)
        if (item or not line.strip()) and lines:
            yield Block(lines, is_paragraph=is_paragraph)
            lines = []
        if line.strip():
            if not lines:
                is_paragraph = not item
            lines.append((number, line[item.end() :] if item else line))


def rust(text: str) -> Iterator[Block]:
    lines: list[tuple[int, str]] = []
    before = ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = re.match(r"\s*(//[/!]?)(?: (.*)|$)", line)
        marker = comment[1] if comment else ""
        if marker != before:
            yield from comment_blocks(lines, before)
            lines, before = [], marker
        if comment:
            lines.append((number, comment[2] or ""))


def comment_blocks(lines: list[tuple[int, str]], marker: str) -> Iterator[Block]:
    """Yields the paragraphs and items of a comment, which are written as in a document."""
    text = "\n".join(line for _, line in lines)
    is_first = True
    for block in markdown(text):
        numbered = [(lines[nth - 1][0], line) for nth, line in block.lines]
        yield Block(numbered, is_doc_comment=is_first and marker == "///")
        is_first = False


def python(text: str) -> Iterator[Block]:
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if comments and comments[-1][0] != token.start[0] - 1:
                yield Block(comments)
                comments = []
            comments.append((token.start[0], token.string.lstrip("#! ")))
    if comments:
        yield Block(comments)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node) is not None:
                first = node.body[0]
                assert isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                for block in markdown(str(first.value.value)):
                    yield Block([(first.lineno + nth - 1, line) for nth, line in block.lines])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
