"""Where the newest tokens of a text stood before: the longest match, the most recent one among equals.

Both kinds take a text token by token, answer the same, and look at matches of up to ``most`` tokens:

* `NGrams`: one table of every run of ``least`` to ``most`` tokens (prompt lookup, Saxena 2023); ``most`` look-ups per
  token, so it is for small ones.
* `Automaton`: a suffix automaton (Blumer et al. 1985; SAM decoding, Hu et al. 2024); amortised constant time per token,
  and as many steps more as suffixes of different history end there, at most ``most``.
"""

from __future__ import annotations

from collections.abc import Sequence

Match = tuple[int, int]  # length, and the index of the token that followed; length 0 = none
NO_MATCH: Match = (0, 0)


class Matcher:
    """A growing text and where its newest tokens stood before."""

    def __init__(self, least: int, most: int):
        self.least, self.most = least, most
        self.text: list[int] = []
        self.match: Match = NO_MATCH  # of the text's own end, at an earlier place

    def push(self, token: int) -> None:
        """Let the text grow by one token."""
        raise NotImplementedError

    def find(self, tail: Sequence[int]) -> Match:
        """The longest match of another text's end; pass at least its newest ``most`` tokens."""
        raise NotImplementedError


class NGrams(Matcher):
    """A table from every run of ``least`` to ``most`` tokens to where it ended last."""

    def __init__(self, least: int, most: int):
        super().__init__(least, most)
        self.ends: dict[tuple[int, ...], int] = {}

    def push(self, token: int) -> None:
        self.text.append(token)
        self.match = self.find(self.text)
        for length in range(self.least, min(self.most, len(self.text)) + 1):
            self.ends[tuple(self.text[-length:])] = len(self.text)

    def find(self, tail: Sequence[int]) -> Match:
        newest = tuple(tail[-self.most :])
        for length in range(len(newest), self.least - 1, -1):
            end = self.ends.get(newest[len(newest) - length :])
            if end is not None:
                return length, end
        return NO_MATCH


class Automaton(Matcher):
    """Every substring of the text, as paths from state 0.

    A state is a set of substrings that end at the same places; its longest one has ``lengths[state]`` tokens, and
    ``links[state]`` holds the longest shorter suffix that also ends elsewhere.  ``ends`` is the most recent end; it is
    kept for substrings of up to ``most`` tokens only, which bounds the work per token.
    """

    def __init__(self, least: int, most: int):
        super().__init__(least, most)
        self.paths: list[dict[int, int]] = [{}]
        self.links, self.lengths, self.ends = [-1], [0], [0]
        self.whole = 0  # state of the whole text
        self.state, self.depth = 0, 0  # state of its newest `depth` tokens, at most `most`

    def push(self, token: int) -> None:
        self.text.append(token)
        self._grow(token)
        self._follow(token)
        self.match = self._mark()

    def find(self, tail: Sequence[int]) -> Match:
        state = depth = 0
        for token in tail[-self.most :]:
            while state and token not in self.paths[state]:
                state = self.links[state]
                depth = self.lengths[state]
            if token in self.paths[state]:
                state, depth = self.paths[state][token], depth + 1
        return (depth, self.ends[state]) if depth >= self.least else NO_MATCH

    def _grow(self, token: int) -> None:
        """The classical step: a state for the whole text, and another where shorter suffixes part from longer ones."""
        new = self._add({}, self.lengths[self.whole] + 1, 0, 0)
        state, self.whole = self.whole, new
        while state >= 0 and token not in self.paths[state]:
            self.paths[state][token] = new
            state = self.links[state]
        if state < 0:
            return
        following = self.paths[state][token]
        if self.lengths[following] > self.lengths[state] + 1:
            following = self._split(following, state, token)
        self.links[new] = following

    def _split(self, old: int, state: int, token: int) -> int:
        """A state for those substrings of ``old`` that now also end here."""
        copy = self._add(dict(self.paths[old]), self.lengths[state] + 1, self.links[old], self.ends[old])
        self.links[old] = copy
        while state >= 0 and self.paths[state].get(token) == old:
            self.paths[state][token] = copy
            state = self.links[state]
        return copy

    def _add(self, paths: dict[int, int], length: int, link: int, end: int) -> int:
        self.paths.append(paths)
        self.lengths.append(length)
        self.links.append(link)
        self.ends.append(end)
        return len(self.paths) - 1

    def _follow(self, token: int) -> None:
        """Go to the state of the newest tokens."""
        if self.depth == self.most:
            self.depth -= 1
        while self.state and self.lengths[self.links[self.state]] >= self.depth:  # one shorter, or it was split
            self.state = self.links[self.state]
        self.state, self.depth = self.paths[self.state][token], self.depth + 1

    def _mark(self) -> Match:
        """Every suffix ends here now; the longest one that had ended before is the match."""
        found, state, depth, now = NO_MATCH, self.state, self.depth, len(self.text)
        while state > 0:
            if self.ends[state] and not found[0]:
                found = depth, self.ends[state]
            self.ends[state] = now
            state = self.links[state]
            depth = self.lengths[state]
        return found if found[0] >= self.least else NO_MATCH


MATCHERS: dict[str, type[Matcher]] = {"automaton": Automaton, "ngram": NGrams}
