"""Implements the matplotlib backend of query mode: `plt.show()` sends the open figures as media.

Imported by matplotlib only.
"""

from __future__ import annotations

import importlib
import io

from . import display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# matplotlib belongs to the user's environment; it is no dependency of ours and has no types here.
_backend_bases: Any = importlib.import_module("matplotlib.backend_bases")
_backend_agg: Any = importlib.import_module("matplotlib.backends.backend_agg")
_pylab_helpers: Any = importlib.import_module("matplotlib._pylab_helpers")

MAX_SVG_CHARS = 1024 * 1024

FigureCanvas = _backend_agg.FigureCanvasAgg


def send_figures() -> None:
    """Sends and closes every open figure: as SVG, or as PNG if the SVG would be larger than 1 MiB."""
    for manager in _pylab_helpers.Gcf.get_all_fig_managers():
        figure = manager.canvas.figure
        svg_buffer = io.StringIO()
        figure.savefig(svg_buffer, format="svg")
        if svg_buffer.tell() <= MAX_SVG_CHARS:
            display.show_media("image/svg+xml", svg_buffer.getvalue())
            continue
        png_buffer = io.BytesIO()
        figure.savefig(png_buffer, format="png")
        display.show_media("image/png", png_buffer.getvalue())
    _pylab_helpers.Gcf.destroy_all()


class FigureManager(_backend_bases.FigureManagerBase):  # type: ignore[misc]  # a class of an untyped package
    """Manages a figure without a window; `show` of one figure sends all figures, as `plt.show()` does."""

    def show(self) -> None:
        send_figures()

    @classmethod
    def pyplot_show(cls, *_args: object, **_kwargs: object) -> None:
        """Implements `plt.show()` since matplotlib 3.6."""
        send_figures()


@_backend_bases._Backend.export
class Backend(_backend_bases._Backend):  # type: ignore[misc]  # a class of an untyped package
    """Implements the backend interface of matplotlib before 3.6."""

    FigureCanvas = FigureCanvas
    FigureManager = FigureManager

    @staticmethod
    def show(*_args: object, **_kwargs: object) -> None:
        send_figures()
