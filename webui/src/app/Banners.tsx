import { Button, Group } from '@mantine/core';
import { IconPlugConnectedX, IconSnowflake } from '@tabler/icons-react';
import { useQuery } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { dataOf, rest } from '../api/client';
import { keys } from '../api/keys';
import { useStreamState } from '../api/useLive';
import { Notice } from '../components/Notice';
import classes from './Banners.module.css';

const lostAfterMs = 5_000;

const dismissedKey = 'backendai-dismissed-announcement';

function dismissedMessage(): string {
  try {
    return localStorage.getItem(dismissedKey) ?? '';
  } catch {
    return '';
  }
}

function dismiss(message: string): string {
  try {
    localStorage.setItem(dismissedKey, message);
  } catch {
    // Storage may be forbidden: it is dismissed until the reload.
  }
  return message;
}

function useIsLost(): boolean {
  const state = useStreamState();
  const [isLost, setLost] = useState(false);
  useEffect(() => {
    if (state === 'open') {
      setLost(false);
      return;
    }
    const timer = setTimeout(() => setLost(true), lostAfterMs);
    return () => clearTimeout(timer);
  }, [state]);
  return isLost;
}

/** What everybody has to know: the announcement, a frozen installation, a lost connection, a new version. */
export function Banners() {
  const { t } = useTranslation('app');
  const isLost = useIsLost();
  const [isOutdated, setOutdated] = useState(false);
  const [dismissed, setDismissed] = useState(dismissedMessage);
  const announcement = useQuery({
    queryKey: keys.announcement,
    queryFn: ({ signal }) => dataOf(rest.GET('/manager/announcement', { signal })),
    staleTime: 60_000,
  });
  const status = useQuery({
    queryKey: keys.managerStatus,
    queryFn: ({ signal }) => dataOf(rest.GET('/manager/status', { signal })),
    staleTime: 15_000,
  });
  useEffect(() => {
    // A page of this version is gone: the server has a newer one.
    const onError = (event: Event) => {
      event.preventDefault();
      setOutdated(true);
    };
    window.addEventListener('vite:preloadError', onError);
    return () => window.removeEventListener('vite:preloadError', onError);
  }, []);
  const message = announcement.data?.enabled ? announcement.data.message : '';
  return (
    <div className={classes.stack} aria-live="polite">
      {isOutdated && (
        <Notice tone="info" title={t('banner.newVersion')}>
          <Button size="xs" onClick={() => window.location.reload()}>
            {t('banner.reload')}
          </Button>
        </Notice>
      )}
      {isLost && (
        <Notice tone="wait" icon={<IconPlugConnectedX aria-hidden />} title={t('banner.lost')}>
          {t('banner.lostDetail')}
        </Notice>
      )}
      {status.data?.status === 'frozen' && (
        <Notice tone="info" icon={<IconSnowflake aria-hidden />} title={t('banner.frozen')}>
          {t('banner.frozenDetail')}
        </Notice>
      )}
      {message !== '' && message !== dismissed && (
        <Notice tone="info" title={t('banner.announcement')}>
          <Group justify="space-between" align="start">
            <span className={classes.message}>{message}</span>
            <Button size="xs" variant="default" onClick={() => setDismissed(dismiss(message))}>
              {t('banner.dismiss')}
            </Button>
          </Group>
        </Notice>
      )}
    </div>
  );
}
