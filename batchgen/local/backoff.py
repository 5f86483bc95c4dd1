"""How long to wait before starting again what has died."""

from dataclasses import dataclass


@dataclass
class Backoff:
    """Doubling waits, forgotten after a life of `calm_s` seconds."""

    first_s: float = 0.5
    longest_s: float = 30.0
    calm_s: float = 60.0
    _deaths_in_a_row: int = 0

    def wait_after(self, lived_s: float) -> float:
        """Seconds to wait after a death that followed a life of `lived_s` seconds."""
        if lived_s >= self.calm_s:
            self._deaths_in_a_row = 0
        wait_s = min(self.longest_s, self.first_s * 2.0**self._deaths_in_a_row)
        self._deaths_in_a_row += 1
        return wait_s
