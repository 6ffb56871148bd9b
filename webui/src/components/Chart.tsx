import 'uplot/dist/uPlot.min.css';
import { useEffect, useRef } from 'react';
import uPlot from 'uplot';

export interface Series {
  label: string;
  /** Null where nothing was measured. */
  values: (number | null)[];
}

/** Returns the range of the times of a chart; of one alone the minute before it, where uPlot would show three years. */
export function timeRange(times: readonly number[]): [number | null, number | null] {
  const [first = null] = times;
  const last = times.at(-1) ?? null;
  return [first !== null && first === last ? first - 60 : first, last];
}

/** A chart of values over time, redrawn in place as values come; its values are told by a table beside it. */
export function Chart({
  times,
  series,
  capacity,
  format,
  label,
}: {
  /** Seconds since the epoch. */
  times: number[];
  series: readonly Series[];
  capacity: number | null;
  format: (value: number) => string;
  label: string;
}) {
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const shown = useRef({ times, series, capacity, format });
  shown.current = { times, series, capacity, format };
  const names = series.map((item) => item.label).join('\n');
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim() || '#888';
    const colors = ['--app-good', '--app-busy', '--app-wait', '--app-bad'].map(color);
    const axis = {
      stroke: color('--mantine-color-dimmed'),
      grid: { stroke: color('--app-line'), width: 1 },
      ticks: { show: false },
    };
    const labels = names.split('\n');
    const plot = new uPlot(
      {
        width: Math.max(200, element.clientWidth),
        height: 150,
        legend: { show: labels.length > 1 },
        cursor: { drag: { x: false, y: false } },
        scales: {
          x: { range: () => timeRange(shown.current.times) },
          y: { range: (_, __, max) => [0, Math.max(shown.current.capacity ?? 0, max || 1)] },
        },
        axes: [axis, { ...axis, size: 72, values: (_, values) => values.map((value) => shown.current.format(value)) }],
        series: [
          {},
          ...labels.map((name, index) => ({
            label: name,
            stroke: colors[index % colors.length] ?? '#888',
            width: 1.5,
            points: { show: false },
          })),
        ],
      },
      [shown.current.times, ...shown.current.series.map((item) => item.values)],
      element,
    );
    chart.current = plot;
    const observer = new ResizeObserver(() => plot.setSize({ width: Math.max(200, element.clientWidth), height: 150 }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
      chart.current = null;
    };
  }, [names]);
  useEffect(() => {
    chart.current?.setData([times, ...series.map((item) => item.values)]);
  }, [times, series]);
  // The drawn width must neither keep the page from getting narrower, nor stick out of it until it is drawn anew.
  return <div ref={place} role="img" aria-label={label} style={{ contain: 'inline-size', overflow: 'hidden' }} />;
}
