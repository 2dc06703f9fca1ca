"""Builds docs/ into the static site target/site/html and checks its links: `make docs`.

The pages at the root of the repository (CHANGELOG.md and others) become pages of the site, too.
"""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "target/site"
PAGES = BUILD / "docs"
HTML = BUILD / "html"
# Pages at the repository's root. The site has them in a folder of their own.
PROJECT = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
NOT_PAGES = shutil.ignore_patterns("*.sh")
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def main() -> int:
    collect_pages()
    zensical = Path(sys.executable).parent / "zensical"
    built = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=BUILD)
    if built.returncode:
        return built.returncode
    broken = broken_links()
    for link in broken:
        print(f"broken link: {link}", file=sys.stderr)
    return 1 if broken else 0


def collect_pages() -> None:
    """Copies docs/, the pages at the root, and other files of the repository that they link to."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=NOT_PAGES)
    shutil.copy(ROOT / "site/zensical.toml", BUILD)
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in PROJECT)]
    done = set()
    while pages:
        source = pages.pop()
        if source not in done:
            done.add(source)
            pages += copy_page(source)


def copy_page(source: Path) -> list[Path]:
    """Copies a page with the files that it links to; returns other pages that it links to."""
    linked: list[Path] = []

    def link_in_site(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        if not target.is_file():
            return link[0]
        copy = in_site(target)
        if target.suffix == ".md" and target != ROOT / "README.md":
            linked.append(target)
        elif not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, copy)
        return f"]({os.path.relpath(copy, in_site(source).parent)}{link[2] or ''})"

    page = in_site(source)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(LINK.sub(link_in_site, source.read_text()))
    return linked


def in_site(source: Path) -> Path:
    """Returns the path in the site of a file of the repository."""
    name = source.relative_to(ROOT)
    if name.parts[0] == "docs":
        return PAGES / Path(*name.parts[1:])
    if name.as_posix() in PROJECT:
        return PAGES / "project" / name
    return PAGES / "index.md" if name.as_posix() == "README.md" else PAGES / "files" / name


class Page(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.links.append(value)
            elif name in {"id", "name"} and value:
                self.anchors.add(value)


def broken_links() -> list[str]:
    """Returns broken links as `page: link`. A link is broken if its file or anchor is missing."""
    pages = {path: Page(path.read_text()) for path in HTML.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        # Links of the page 404.html start at the site's root.
        for link in page.links if path.name != "404.html" else []:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            has_anchor = target not in pages or not parts.fragment or (
                unquote(parts.fragment) in pages[target].anchors
            )
            if not target.exists() or not has_anchor:
                broken.append(f"{path.relative_to(HTML)}: {link}")
    return broken


if __name__ == "__main__":
    sys.exit(main())
