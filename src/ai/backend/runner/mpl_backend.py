"""The matplotlib backend of query mode: `plt.show()` sends the open figures as media. Imported by matplotlib only."""

from __future__ import annotations

import importlib
import io

from . import display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# matplotlib belongs to the user's environment; it is no dependency of ours and has no types here.
_bases: Any = importlib.import_module("matplotlib.backend_bases")
_agg: Any = importlib.import_module("matplotlib.backends.backend_agg")
_helpers: Any = importlib.import_module("matplotlib._pylab_helpers")

MAX_SVG = 1024 * 1024

FigureCanvas = _agg.FigureCanvasAgg


def send_figures() -> None:
    """Sends every open figure and closes it: as SVG, or as PNG if the SVG would be larger than 1 MiB."""
    for manager in _helpers.Gcf.get_all_fig_managers():
        figure = manager.canvas.figure
        text = io.StringIO()
        figure.savefig(text, format="svg")
        if text.tell() <= MAX_SVG:
            display.show_media("image/svg+xml", text.getvalue())
            continue
        image = io.BytesIO()
        figure.savefig(image, format="png")
        display.show_media("image/png", image.getvalue())
    _helpers.Gcf.destroy_all()


class FigureManager(_bases.FigureManagerBase):  # type: ignore[misc]  # a class of an untyped package
    """A manager without a window; `show` of one figure shows all, as `plt.show()` does."""

    def show(self) -> None:
        send_figures()

    @classmethod
    def pyplot_show(cls, *_args: object, **_kwargs: object) -> None:
        """Implements `plt.show()` since matplotlib 3.6."""
        send_figures()


@_bases._Backend.export
class Backend(_bases._Backend):  # type: ignore[misc]  # a class of an untyped package
    """The backend interface of matplotlib before 3.6."""

    FigureCanvas = FigureCanvas
    FigureManager = FigureManager

    @staticmethod
    def show(*_args: object, **_kwargs: object) -> None:
        send_figures()
