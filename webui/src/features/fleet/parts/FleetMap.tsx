import { useComputedColorScheme } from '@mantine/core';
import { useElementSize } from '@mantine/hooks';
import { type KeyboardEvent, type MouseEvent, useEffect, useMemo, useRef, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { agentAt, deviceState, type FleetAgent, healthOf, layoutMap } from '../rules';
import classes from './FleetMap.module.css';

const square = 10;
const step = square + 2;

function draw(
  context: CanvasRenderingContext2D,
  layout: ReturnType<typeof layoutMap>,
  chosen: string | null,
  color: (name: string) => string,
): void {
  const devices = {
    free: color('--app-good'),
    part: color('--app-wait'),
    full: color('--app-busy'),
    failed: color('--app-bad'),
  };
  const frame = { good: color('--app-line'), wait: color('--app-wait'), bad: color('--app-bad') };
  const text = color('--mantine-color-text');
  context.font = '600 13px system-ui, sans-serif';
  context.fillStyle = text;
  for (const heading of layout.headings) context.fillText(heading.text || '–', 0, heading.y + 17);
  context.font = '11px system-ui, sans-serif';
  for (const { agent, x, y } of layout.cells) {
    const health = healthOf(agent);
    context.fillStyle = color(
      health === 'bad' ? '--app-bad-ground' : health === 'wait' ? '--app-wait-ground' : '--app-surface',
    );
    context.fillRect(x, y, layout.cellWidth, layout.cellHeight);
    context.strokeStyle = agent.id === chosen ? text : frame[health];
    context.lineWidth = agent.id === chosen ? 2 : 1;
    context.strokeRect(x + 0.5, y + 0.5, layout.cellWidth - 1, layout.cellHeight - 1);
    context.fillStyle = text;
    context.fillText(agent.id, x + 4, y + 13, layout.cellWidth - 8);
    const across = Math.max(1, Math.floor((layout.cellWidth - 6) / step));
    for (let place = 0; place < agent.devices.length; place += 1) {
      const state = deviceState(agent.devices[place] ?? '0');
      const left = x + 4 + (place % across) * step;
      const top = y + 18 + Math.floor(place / across) * step;
      context.strokeStyle = devices[state];
      context.lineWidth = 1;
      context.strokeRect(left + 0.5, top + 0.5, square - 1, square - 1);
      context.fillStyle = devices[state];
      if (state === 'full' || state === 'failed') context.fillRect(left, top, square, square);
      if (state === 'part') context.fillRect(left, top + square / 2, square, square / 2);
      if (state === 'failed') {
        context.strokeStyle = color('--app-surface');
        context.beginPath();
        context.moveTo(left + 2, top + 2);
        context.lineTo(left + square - 2, top + square - 2);
        context.moveTo(left + square - 2, top + 2);
        context.lineTo(left + 2, top + square - 2);
        context.stroke();
      }
    }
  }
}

/**
 * All agents on one canvas, by place or resource group; each square is an accelerator.
 *
 * The arrow keys go from agent to agent, Enter opens one; the table says the same in words.
 */
export function FleetMap({
  groups,
  onOpen,
}: {
  groups: readonly [string, FleetAgent[]][];
  onOpen: (agent: FleetAgent) => void;
}) {
  const { t } = useTranslation('fleet');
  const { ref, width } = useElementSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scheme = useComputedColorScheme('light');
  const [chosen, setChosen] = useState<string | null>(null);
  const layout = useMemo(() => layoutMap(groups, Math.max(width, 200)), [groups, width]);
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext('2d') ?? null;
    if (element === null || context === null || scheme === undefined) return;
    const ratio = window.devicePixelRatio || 1;
    element.width = Math.max(width, 200) * ratio;
    element.height = layout.height * ratio;
    const style = getComputedStyle(document.documentElement);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, layout.height);
    draw(context, layout, chosen, (name) => style.getPropertyValue(name).trim() || '#888');
  }, [layout, width, chosen, scheme]);
  const chosenAgent = layout.cells.find((cell) => cell.agent.id === chosen)?.agent ?? null;
  const at = (event: MouseEvent<HTMLCanvasElement>) => {
    const frame = event.currentTarget.getBoundingClientRect();
    return agentAt(layout, event.clientX - frame.left, event.clientY - frame.top);
  };
  const move = (event: KeyboardEvent) => {
    const place = layout.cells.findIndex((cell) => cell.agent.id === chosen);
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by !== undefined) {
      event.preventDefault();
      const next = layout.cells[Math.min(layout.cells.length - 1, Math.max(0, place + by))];
      setChosen(next?.agent.id ?? null);
    } else if (event.key === 'Enter' && chosenAgent) onOpen(chosenAgent);
  };
  return (
    <div ref={ref} className={classes.frame}>
      <section
        className={classes.keys}
        aria-label={t('map.label', { count: layout.cells.length })}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the drawing is steered by keys
        tabIndex={0}
        onKeyDown={move}
      >
        <canvas
          ref={canvas}
          aria-hidden
          className={classes.map}
          style={{ height: layout.height }}
          onMouseMove={(event) => setChosen(at(event)?.id ?? null)}
          onClick={(event) => {
            const agent = at(event);
            if (agent) onOpen(agent);
          }}
        />
      </section>
      <div className={classes.told} aria-live="polite">
        {chosenAgent
          ? t('map.told', {
              id: chosenAgent.id,
              status: chosenAgent.status,
              hardware: chosenAgent.hardware || '–',
              kernels: chosenAgent.kernels,
            })
          : t('map.hint')}
      </div>
    </div>
  );
}
