"""Tests of the prose linter: each rule finds its fault at its line, and nothing else."""

import tempfile
import unittest
from pathlib import Path

import prose

WORDS = prose.read_words(prose.ROOT / "lint/words.txt")
LONG = " ".join(["word"] * 31) + "."


class ProseTest(unittest.TestCase):
    def faults(self, name: str, text: str) -> list[tuple[int, str]]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(text)
            return sorted(prose.check(path, WORDS))

    def test_sentences_are_counted_across_lines(self) -> None:
        text = "Short one.\n" + LONG.replace(" word word", " word\nword", 1) + "\n"
        [(line, fault)] = self.faults("a.md", text)
        self.assertEqual(line, 2)
        self.assertIn("sentence of 31 words", fault)

    def test_code_counts_as_one_word(self) -> None:
        text = f"One `{LONG}` two.\n\n```\n{LONG}\n```\n\n[link]({'a' * 400}) three.\n"
        self.assertEqual(self.faults("a.md", text), [])

    def test_paragraphs_of_documents_are_short(self) -> None:
        self.assertEqual(self.faults("a.md", "A line.\n" * 6), [])
        self.assertEqual(self.faults("a.md", "\n" + "A line.\n" * 7), [(2, "paragraph of 7 lines")])
        self.assertEqual(self.faults("a.rs", "//! A line.\n" * 7), [])

    def test_words_are_found_where_they_are(self) -> None:
        text = "/// Returns rows.\n/// Then nobody waits.\nfn nobody() {}\n// `nobody`\n"
        [(line, fault)] = self.faults("a.rs", text)
        self.assertEqual((line, fault.split(":")[0]), (2, '"nobody"'))

    def test_doc_comments_begin_with_what_the_item_is(self) -> None:
        [(line, fault)] = self.faults("a.rs", "fn a() {}\n\n    /// That it is new.\nfn b() {}\n")
        self.assertEqual((line, fault), (3, 'doc comment begins with "That"'))

    def test_docstrings_and_comments_of_python(self) -> None:
        text = f'"""A module."""\n\n\ndef a():\n    """Returns.\n\n    {LONG}\n    """\n'
        text += "    # anew\n"
        found = self.faults("a.py", text)
        self.assertEqual([line for line, _ in found], [7, 9])


if __name__ == "__main__":
    unittest.main()
