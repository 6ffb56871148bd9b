import { useTranslation } from 'react-i18next';
import { formatSlot, slotLabel, useSlotDetails } from '../api/slots';
import classes from './Slots.module.css';

/** Shows amounts of slots, each with its name and unit. */
export function Slots({ amounts }: { amounts: Record<string, string> }) {
  const { i18n } = useTranslation();
  const { data } = useSlotDetails();
  const entries = Object.entries(amounts);
  if (entries.length === 0) return <span>–</span>;
  return (
    <span className={classes.list}>
      {entries.map(([name, amount]) => (
        <span key={name} className={classes.item} title={data?.[name]?.description ?? name}>
          {formatSlot(name, amount, data, i18n.language)} <span className={classes.name}>{slotLabel(name, data)}</span>
        </span>
      ))}
    </span>
  );
}
