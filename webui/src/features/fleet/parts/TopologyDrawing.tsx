import { useTranslation } from 'react-i18next';
import { box, type Device, layoutTopology, linkPath, usedPart } from '../rules';
import classes from './TopologyDrawing.module.css';

/** Draws the accelerators of an agent by NUMA node, what of each is in use, and their direct links. */
export function TopologyDrawing({ devices }: { devices: readonly Device[] }) {
  const { t } = useTranslation('fleet');
  const topology = layoutTopology(devices);
  if (topology.devices.length === 0) return null;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls
    <section className={classes.frame} tabIndex={0} aria-label={t('topology.drawing')}>
      <svg
        width={topology.width}
        height={topology.height}
        viewBox={`0 0 ${topology.width} ${topology.height}`}
        role="img"
        aria-label={t('topology.label', { count: topology.devices.length, links: topology.links.length })}
      >
        {topology.nodes.map((node) => (
          <g key={String(node.numa)}>
            <rect
              x={node.x + 0.5}
              y={0.5}
              width={node.width - 1}
              height={topology.height - 1}
              rx={6}
              className={classes.node}
            />
            <text x={node.x + 12} y={22} className={classes.heading}>
              {node.numa === null ? t('topology.noNode') : t('topology.node', { number: node.numa })}
            </text>
          </g>
        ))}
        {topology.devices.map(({ device, x, y }) => {
          const isFailed = device.health !== 'healthy';
          const used = usedPart(device);
          return (
            <g key={device.id} className={classes.device} data-state={isFailed ? 'failed' : used > 0 ? 'used' : 'free'}>
              <title>{`${device.model} ${device.id}`}</title>
              <rect
                x={x + 0.5}
                y={y + 0.5}
                width={box.width - 1}
                height={box.height - 1}
                rx={4}
                className={classes.body}
              />
              <rect
                x={x + 1}
                y={y + box.height * (1 - used)}
                width={box.width - 2}
                height={Math.max(0, box.height * used - 1)}
                className={classes.used}
              />
              <text x={x + 8} y={y + 20} className={classes.name}>
                {device.id.length > 12 ? `${device.id.slice(0, 11)}…` : device.id}
              </text>
              <text x={x + 8} y={y + 38} className={classes.detail}>
                {device.model.length > 14 ? `${device.model.slice(0, 13)}…` : device.model}
              </text>
              <text x={x + 8} y={y + 55} className={classes.detail}>
                {isFailed ? t('state.failed') : `${Math.round(used * 100)} %`}
              </text>
            </g>
          );
        })}
        {topology.links.map((link) => (
          <path
            key={`${link.from.device.id} ${link.to.device.id}`}
            d={linkPath(link.from, link.to)}
            className={classes.link}
          >
            <title>{`${link.from.device.id} – ${link.to.device.id}: ${link.kind}`}</title>
          </path>
        ))}
      </svg>
    </section>
  );
}
