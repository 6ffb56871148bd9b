import { useQuery } from '@tanstack/react-query';
import { dataOf, rest } from '../../api/client';

/** The kinds of owners that folders may have here; none where no folders are stored. */
export function useFolderTypes() {
  return useQuery({
    queryKey: ['folder-types'],
    queryFn: ({ signal }) => dataOf(rest.GET('/config/vfolder-types', { signal })),
  });
}
