"""Checks that a text contains others in an order (`torch.testing.FileCheck`)."""

import re


class FileCheck:
    """Checks of a text. Each check searches after the match of the one before."""

    def __init__(self):
        self._checks = []

    def _add(self, kind, text, count=None, exactly=False):
        self._checks.append((kind, text, count, exactly))
        return self

    def check(self, text):
        """Checks that a text follows."""
        return self._add("check", text)

    def check_not(self, text):
        """Checks that a text does not occur before the next one that is found."""
        return self._add("not", text)

    def check_next(self, text):
        """Checks that a text follows on the next line."""
        return self._add("next", text)

    def check_same(self, text):
        """Checks that a text follows on the same line."""
        return self._add("same", text)

    def check_dag(self, text):
        """Checks that a text follows."""
        return self._add("check", text)

    def check_count(self, text, count, exactly=False):
        """Checks that a text follows several times."""
        return self._add("count", text, count, exactly)

    def check_regex(self, pattern):
        """Checks that a match of a pattern follows."""
        return self._add("regex", pattern)

    def check_source_highlighted(self, text):
        """Checks that a text follows whose line is marked below."""
        return self._add("check", text)

    def run(self, *texts):
        """Raises a `RuntimeError` if a check fails. With two texts the first has the checks as comments, and the second is checked."""
        text, place, refused = str(texts[-1]), 0, []
        for kind, wanted, count, exactly in self._checks if len(texts) == 1 else _written(texts[0]):
            if kind == "not":
                refused.append(wanted)
                continue
            begin = place
            for _ in range(count or 1):
                found = re.compile(wanted if kind == "regex" else re.escape(wanted)).search(text, place)
                if found is None or (kind == "same" and "\n" in text[place:found.start()]) or (
                        kind == "next" and text[place:found.start()].count("\n") != 1):
                    raise RuntimeError(f'Expected to find "{wanted}" but did not find it\nSearched string:\n{text[place:]}\nFrom CHECK{_SUFFIX[kind]}: {wanted}')
                place = found.end()
            if exactly and wanted in text[place:]:
                raise RuntimeError(f'Expected to not find "{wanted}" but found it\n{text}')
            _refuse(refused, text[begin:found.start()])
            refused = []
        _refuse(refused, text[place:])


_SUFFIX = {"check": "", "next": "-NEXT", "same": "-SAME", "count": "-COUNT", "regex": "-REGEX"}


def _refuse(refused, text):
    for one in refused:
        if one in text:
            raise RuntimeError(f'Expected to not find "{one}" but found it\n{text}\nFrom CHECK-NOT: {one}')


def _written(text):
    """Returns the checks that a text has as comments."""
    kinds = {"": "check", "-NOT": "not", "-NEXT": "next", "-SAME": "same", "-DAG": "check"}
    return [(kinds[kind], wanted.strip(), None, False) for kind, wanted in re.findall(r"# *CHECK(-NOT|-NEXT|-SAME|-DAG)?: (.*)", text)]
